#include "app/program_main.h"

int main(int argc, char** argv) {
  return attnres::program_main(argc, argv);
}
