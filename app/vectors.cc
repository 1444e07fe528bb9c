// The vectors subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/conformance/test_vectors.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

struct VectorsOptions {
  std::string out;
  std::vector<std::string> mechanisms;
  bool markdown = false;
};

// The last section of docs/test-vectors.md.
void print_markdown() {
  fmt::print(
      "## Every mechanism\n\n"
      "From here on written by `attnres vectors --markdown`; do not edit. These are the texts of "
      "the "
      "file's metadata. {}\n",
      test_vector_notation());
  for (const Mechanism& mechanism : mechanisms()) {
    const MechanismText& text = mechanism.text;
    fmt::print("\n### {}\n\n`{}`\n\n{}\n\n", text.name, text.formula, text.details);
    for (const RoleText& role : text.roles) fmt::print("- `{}` {}\n", role.role, role.text);
    std::string others;
    for (const TestVectorEntry& entry : test_vector_entries()) {
      if (entry.depth_mixing.name() != text.name || entry.name == text.name) continue;
      const std::string formula = test_vector_formula(entry);
      others += fmt::format("- `{}`", entry.name);
      others += formula == text.formula ? "\n" : fmt::format(": `{}`\n", formula);
    }
    if (!others.empty()) fmt::print("\nEntries with other settings:\n\n{}", others);
  }
}

void run_vectors(const VectorsOptions& options) {
  require_usage(options.markdown == options.out.empty(),
                "expected --out FILE to write test vectors, or --markdown to print their texts");
  if (options.markdown) {
    print_markdown();
    return;
  }
  WrittenVectors written;
  write_new("--out", options.out, "file",
            [&] { written = write_test_vectors(options.out, options.mechanisms); });
  fmt::print("{}: {} of {}; docs/test-vectors.md describes them\n", options.out,
             counted(written.tensors, "tensor"), counted(written.entries, "entry"));
}

}  // namespace

void add_vectors_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "vectors",
      "Write test vectors of the mechanisms, to check other programs by. They are in float64:\n"
      "parameters, what sublayers return, what every site then reads, and gradients. Then attnres\n"
      "diagnose says what is wrong with the numbers that another program computes.");
  const auto options = std::make_shared<VectorsOptions>();
  add_path(command, "--out FILE", options->out, "the safetensors file to write");
  add_option(command, "--mechanism MECHANISM", options->mechanisms,
             "only of these, of those that attnres mechanisms lists (default: of all)");
  command.add_flag("--markdown", options->markdown,
                   "print what formulas and parameters mean, as in docs/test-vectors.md");
  command.footer(
      "Examples:\n"
      "  attnres vectors --out vectors.safetensors\n"
      "  attnres vectors --out vectors.safetensors --mechanism mhc mhc_lite");
  command.callback([options] { run_vectors(*options); });
}

}  // namespace attnres
