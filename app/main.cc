#include "app/program_main.h"

int main(int argc, char** argv) {
  attnres::end_program(attnres::program_main(argc, argv));
}
