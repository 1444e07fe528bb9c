#include "app/launcher/commands_json.h"

// The file as it is, in the program's constants.
asm(".pushsection .rodata\n"
    "attnres_commands_begin: .incbin \"" ATTNRES_COMMANDS_JSON
    "\"\n"
    "attnres_commands_end: .byte 0\n"
    ".popsection");

extern "C" {
extern const char attnres_commands_begin[], attnres_commands_end[];
}

namespace attnres {

std::string_view commands_json() {
  return {attnres_commands_begin, attnres_commands_end};
}

}  // namespace attnres
