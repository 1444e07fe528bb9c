// The vectors subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "app/commands.h"
#include "attnres/study/test_vectors.h"

namespace attnres {
namespace {

struct VectorsOptions {
  std::string out;
  std::vector<std::string> mechanisms;
};

void run_vectors(const VectorsOptions& options) {
  const WrittenVectors written = write_test_vectors(options.out, options.mechanisms);
  fmt::print("{}: {} tensors of {} entries; docs/test-vectors.md describes them\n", options.out,
             written.tensors, written.entries);
}

}  // namespace

void add_vectors_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "vectors",
      "Write test vectors of the mechanisms in float64, for checking an implementation elsewhere:\n"
      "parameters, what sublayers return, what every site then reads, and gradients.");
  const auto options = std::make_shared<VectorsOptions>();
  command->add_option("--out", options->out, "the safetensors file to write")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--mechanism", options->mechanisms, "only these; attnres mechanisms lists them")
      ->type_name("NAME");
  command->footer(
      "Examples:\n"
      "  attnres vectors --out vectors.safetensors\n"
      "  attnres vectors --out vectors.safetensors --mechanism attn_res block_attn_res\n"
      "then attnres diagnose says what is wrong with the numbers that another program computes.");
  command->callback([options] { run_vectors(*options); });
}

}  // namespace attnres
