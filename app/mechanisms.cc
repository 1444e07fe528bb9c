// The mechanisms subcommand.
#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/mixing_matrix.h"
#include "app/options.h"
#include "attnres/depth/depth_mixing.h"
#include "attnres/depth/mechanism.h"
#include "attnres/depth/mixing_cost.h"
#include "attnres/depth/mixing_matrix.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

struct MechanismsOptions {
  std::string name;
  std::vector<std::string> settings;
  MixerShape shape = {.width = 256, .sublayers = 24, .heads = 4, .kv_heads = 4};
  int64_t layers = 12;
  std::string matrix;
  bool json = false, markdown = false;
};

// A mechanism in a model of this shape.
struct Row {
  MechanismText text;
  Json settings;  // resolved
  double traffic;
  MixingCost cost;
};

Row measure(const DepthMixing& mixing, const MixerShape& shape) {
  Json settings = mixing.to_json();
  settings.erase("type");
  return {mixing.text(), settings, mixing.traffic(shape), measure_mixing_cost(mixing, shape)};
}

// Numbers of [T, D] that cross a cut in the middle.
std::string crossing(const MixingCost& cost) {
  return fmt::format("{:.3g} + {:.3g}", cost.sealed, cost.open);
}

Json to_json(const Row& row) {
  return {{"name", row.text.name},
          {"formula", row.text.formula},
          {"start", row.text.start},
          {"source", row.text.source},
          {"settings", row.settings},
          {"parameters", row.cost.parameters},
          {"multiply_adds", row.cost.multiply_adds},
          {"traffic",
           {{"formula", row.text.traffic}, {"fused", row.traffic}, {"counted", row.cost.moved}}},
          {"kept", row.cost.kept},
          {"sealed", row.cost.sealed},
          {"open", row.cost.open}};
}

std::string describe(const MixerShape& shape) {
  return fmt::format("{} of width d = {}, {}", counted(shape.sublayers, "sublayer"), shape.width,
                     counted(shape.heads, "head"));
}

void print_table(const std::vector<Row>& rows, const MixerShape& shape) {
  constexpr size_t kFigures = 77, kNarrowestSource = 30;
  const size_t columns = text_columns();
  const bool with_source = columns >= kFigures + 2 + kNarrowestSource;
  fmt::print("{}\n\n", wrapped(fmt::format("Costs in a model of {}, per token and sublayer:",
                                           describe(shape)),
                               columns));
  fmt::print("{:18}{:>11}{:>11}{:>10}{:>9}{:>7}{:>11}\n", "", "", "multiply-", "moved:", "",
             "kept,", "crosses a");
  fmt::print("{:18}{:>11}{:>11}{:>10}{:>9}{:>7}{:>11}{}\n", "mechanism", "parameters", "adds",
             "one pass", "counted", "in d", "cut, in d", with_source ? "  source" : "");
  for (const Row& row : rows) {
    const std::string source =
        with_source ? "  " + wrapped(row.text.source, columns, kFigures + 2) : "";
    fmt::print("{:18}{:>11}{:>11}{:>10.2f}{:>9.2f}{:>7.2f}{:>11}{}\n", row.text.name,
               format_count(static_cast<double>(row.cost.parameters)),
               format_count(row.cost.multiply_adds), row.traffic, row.cost.moved, row.cost.kept,
               crossing(row.cost), source);
  }
  fmt::print("\n{}\n",
             wrapped("\"moved\" is in d, too. attnres mechanisms NAME shows one with its formula, "
                     "settings and source; docs/mechanisms.md says how these are counted.",
                     columns));
}

void print_one(const Row& row, const MixerShape& shape) {
  constexpr size_t kValues = 12;
  const size_t columns = text_columns();
  const auto line = [&](const char* label, const std::string& text) {
    fmt::print("{:12}{}\n", label, wrapped(text, columns, kValues));
  };
  fmt::print("{}\n\n  {}\n\n", row.text.name, wrapped(row.text.formula, columns, 2));
  line("start", row.text.start);
  line("source", row.text.source);
  if (row.settings.empty()) line("settings", "none");
  const char* label = "settings";
  for (const auto& [key, value] : row.settings.items()) {
    line(label, fmt::format("{} = {}", key, value.dump()));
    label = "";
  }
  fmt::print(
      "\n{}\n",
      wrapped(fmt::format("in a model of {}, per token and sublayer:", describe(shape)), columns));
  line("parameters", fmt::format("{} in all", row.cost.parameters));
  line("multiplies", fmt::format("{} multiply-adds", format_count(row.cost.multiply_adds)));
  line("moved", fmt::format("{} = {:.2f} d in one pass; counted {:.2f} d with the sublayer's norm",
                            row.text.traffic, row.traffic, row.cost.moved));
  line("kept", fmt::format("{:.2f} d for the backward", row.cost.kept));
  line("crosses", fmt::format("a cut in the middle: {:.3g} d sent once, {:.3g} d sent always",
                              row.cost.sealed, row.cost.open));
}

std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return escaped;
}

constexpr const char* kIntroduction = R"(# The mechanisms

Written by `attnres mechanisms --markdown`; do not edit.

Every way to combine layers that the program has: [formulas](#formulas), with how each starts and where
it is from; [settings](#settings) with their defaults; [costs](#costs), counted. How to implement one
elsewhere: [test-vectors.md](test-vectors.md).

## Formulas

`model.depth_mixing.type` in a recipe names one; its settings stand beside `type`. Symbols: site l
reads h_l, its sublayer's output is y_l = f_l(norm(h_l)), v_0 is the token embedding and v_l =
y_{l-1}; d is the width, L the number of sublayers, j a Transformer layer of J, X_j the state with
which it begins; sg is the sigmoid. Each source in `attnres/depth/mechanisms/` has the whole
contract, and says where its paper leaves a choice.

| name | formula | starts | source |
| --- | --- | --- | --- |
)";

constexpr const char* kHowCostsAreCounted = R"(Parameters are the model's, beside the norms of the
sublayers' inputs; everything else is per token and sublayer, forward, in float32.

- *Multiply-adds*: products exactly; every other operation one for each number that it reads, depth
  attention as often as it uses it.
- *Formula*: numbers that the mixing reads and writes if each pass over the channels is one fused
  pass, as Table 1 of arXiv 2603.15031 counts: the norm before the sublayer is left out.
- *Counted*: numbers that this program's operations read and write, every tensor of every operation
  once, with that norm. `bench_traffic` counts the bytes of the fused kernels themselves, on an
  element type that counts, and a test holds the two together.
- *Kept*: numbers that a training step keeps for the backward, with what the sublayer reads, and with
  its output where the mixing keeps that.
- *Crossing*: tensors of [T, d] that are sent over a cut in the middle of the model: once for all
  stages behind it + at every cut.

| name | parameters | multiply-adds | formula | = | counted | kept | crossing |
| --- | --- | --- | --- | --- | --- | --- | --- |
)";

constexpr const char* kWhyTheyDiffer = R"(
Counted minus formula is, first, the norm: its input is read and its output written, 2 d, or 1 d
where it is fused with the pass before it (`residual`, `attn_res`, `block_attn_res`,
`delta_attn_res`, whose mixture is written and read once more). Table 1 charges
every block for all N blocks where on average about half are finished, and leaves out the write of
the sublayer's input; both show in the attention residuals. The mechanisms with several streams read
them in one pass and write them in another, where the formula counts a third for mixing them, and
`dense_former`, `ancre` and `muddformer` sum their sources in one. `gated_residual` writes to its
streams in one pass; its reads have no kernel yet. Everything else is composed of
tensor operations, and every intermediate of theirs is written and read again: that is the rest of
the difference, and what a fused kernel would save.
)";

void print_markdown(const std::vector<Row>& rows, const MixerShape& shape) {
  fmt::print("{}", kIntroduction);
  for (const Row& row : rows) {
    fmt::print("| `{}` | {} | {} | {} |\n", row.text.name, cell(row.text.formula),
               cell(row.text.start), cell(row.text.source));
  }
  fmt::print("\n## Settings\n\n| name | settings and what they are by default |\n| --- | --- |\n");
  for (const Row& row : rows) {
    if (row.settings.empty()) continue;
    std::string settings;
    for (const auto& [key, value] : row.settings.items()) {
      settings += fmt::format("{}`{}` {}", settings.empty() ? "" : ", ", key, value.dump());
    }
    fmt::print("| `{}` | {} |\n", row.text.name, settings);
  }
  fmt::print("\n## Costs\n\nIn a model of {}. {}", describe(shape), kHowCostsAreCounted);
  for (const Row& row : rows) {
    fmt::print("| `{}` | {} | {} | {} | {:.2f} d | {:.2f} d | {:.2f} d | {} |\n", row.text.name,
               row.cost.parameters, format_count(row.cost.multiply_adds), cell(row.text.traffic),
               row.traffic, row.cost.moved, row.cost.kept, crossing(row.cost));
  }
  fmt::print("{}", kWhyTheyDiffer);
}

void require_known(const std::string& name) {
  const std::vector<std::string> known = mechanism_names();
  require_usage(std::find(known.begin(), known.end(), name) != known.end(),
                "mechanisms {}: there is none of that name; attnres mechanisms lists all{}",
                one_line(name), did_you_mean(name, known));
}

void run_mechanisms(MechanismsOptions options) {
  MixerShape& shape = options.shape;
  shape.sublayers = static_cast<int>(2 * options.layers);
  shape.kv_heads = shape.heads;
  require_usage(shape.width % shape.heads == 0, "--width: {} is not divisible by {} heads",
                shape.width, shape.heads);
  at::set_num_threads(1);  // what is counted is small: threads would only wait for each other
  require_usage(!options.name.empty() || (options.settings.empty() && options.matrix.empty()),
                "--set and --matrix are about one mechanism: name it");
  std::vector<Row> rows;
  if (options.name.empty()) {
    for (const Mechanism& mechanism : mechanisms()) {
      rows.push_back(measure(DepthMixing({{"type", mechanism.text.name}}, shape), shape));
    }
  } else {
    require_known(options.name);
    Json depth_mixing = {{"type", options.name}};
    for (const std::string& setting : options.settings) apply_override(depth_mixing, setting);
    const DepthMixing mixing(depth_mixing, shape);
    rows.push_back(measure(mixing, shape));
    if (!options.matrix.empty()) {
      ParameterRegistry parameters(at::kDouble, /*seed=*/0);
      const auto mixer = mixing.make_mixer(shape, parameters);
      for (const auto& matrix : mixing_matrices(*mixer, shape.sublayers, shape.width)) {
        draw_matrix(matrix.stream, matrix.mean, options.name + ", as it starts", options.matrix);
      }
    }
  }
  if (options.json) {
    Json list = Json::array();
    for (const Row& row : rows) list.push_back(to_json(row));
    fmt::print("{}\n", list.dump());
  } else if (options.markdown) {
    print_markdown(rows, shape);
  } else if (options.name.empty()) {
    print_table(rows, shape);
  } else {
    print_one(rows[0], shape);
  }
}

}  // namespace

void add_mechanisms_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("mechanisms",
                                          "List the ways to combine layers that a recipe can name. "
                                          "Shows formula, start, settings, paper, and what each "
                                          "costs in a model of a given size.");
  const auto options = std::make_shared<MechanismsOptions>();
  add_option(command, "name MECHANISM", options->name, "show only this one, with all about it");
  add_option(command, "--set KEY=VALUE", options->settings,
             "with these settings, for example block_size=4");
  add_whole(command, "--layers N", options->layers, {1, 1 << 10}, "how many Transformer layers")
      ->capture_default_str();
  add_whole(command, "--width N", options->shape.width, {1, 1 << 14}, "d, the model's width")
      ->capture_default_str();
  add_whole(command, "--heads N", options->shape.heads, {1, 1 << 10}, "attention heads")
      ->capture_default_str();
  add_option(command, "--matrix FILE", options->matrix,
             "draw its depth mixing matrix, as it starts, as an SVG file");
  command.add_flag("--json", options->json, "print JSON");
  command.add_flag("--markdown", options->markdown, "print docs/mechanisms.md");
  command.footer(
      "Examples:\n"
      "  attnres mechanisms\n"
      "  attnres mechanisms block_attn_res --set block_size=2 --layers 2\n"
      "  attnres mechanisms mhc --matrix matrix.svg");
  command.callback([options] { run_mechanisms(*options); });
}

}  // namespace attnres
