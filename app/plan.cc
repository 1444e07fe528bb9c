// The plan subcommand.
#include "attnres/plan/plan.h"

#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/options.h"
#include "app/plan_inference.h"
#include "attnres/plan/this_machine.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

struct PlanOptions {
  std::string recipe, cluster;
  std::vector<std::string> overrides;
  Prompt prompt;
  bool search = false, json = false;
  std::string write_cluster;
  int64_t devices = 0;
  InferencePlanOptions inference;
};

// As format_duration, with more digits: what is compared lies close together.
std::string seconds_text(double seconds) {
  if (seconds >= 1000) return format_duration(seconds);
  return seconds < 1 ? fmt::format("{:.4g} ms", 1000 * seconds) : fmt::format("{:.4g} s", seconds);
}

// "0-5, 30-35": the sublayers' sites, and "out".
std::string sites_text(const std::vector<SiteRange>& ranges, int sublayers) {
  std::string text;
  for (const auto& [first, last] : ranges) {
    const int end = std::min(last, sublayers) - 1;
    if (!text.empty()) text += ", ";
    text += first > end    ? ""
            : first == end ? fmt::format("{}", first)
                           : fmt::format("{}-{}", first, end);
    if (last > sublayers) text += text.empty() ? "out" : "+out";
  }
  return text;
}

void print_memory(const Plan& plan, const PlannedModel& model) {
  fmt::print("\n{:>5} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10}  {}\n", "rank", "weights",
             "grad.", "moments", "in flight", "activat.", "copies", "in all", "sites");
  const auto bytes = [](double number) { return format_bytes(number); };
  for (size_t rank = 0; rank < plan.memory.ranks.size(); ++rank) {
    const RankMemory& memory = plan.memory.ranks[rank];
    fmt::print("{:>5} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>10}  {}\n", rank,
               bytes(memory.weights), bytes(memory.gradients), bytes(memory.moments),
               memory.in_flight, bytes(memory.activations),
               bytes(memory.received + memory.waiting_gradients), bytes(memory.total),
               sites_text(memory.sites, model.cost().sublayers()));
  }
  print_wrapped((plan.shortage.empty()
                     ? fmt::format("It fits: a device has {}.", format_bytes(plan.memory.capacity))
                     : "It does not fit. " + plan.shortage) +
                " Columns are the most of each, \"in all\" the most at one moment.");
}

void print_mixing(const Plan& plan, const Recipe& recipe) {
  fmt::print("\n");
  print_wrapped(fmt::format(
      "Mixing by {} moves {:.2f} d per token and sublayer, plain residual connections {:.2f} d.",
      recipe.model.depth_mixing.name(), plan.mixing.of_mechanism, plan.mixing.of_residual));
}

void print_traffic(const Plan& plan) {
  if (plan.layout.processes() == 1) return;
  fmt::print("\nSent in a step, by all processes ({}):\n", plan.layout.processes());
  const auto row = [&](const char* what, const auto& of_policy) {
    fmt::print("{:36}", what);
    for (const PolicyTraffic& policy : plan.traffic.policies) {
      fmt::print(" {:>11}", of_policy(policy));
    }
    fmt::print("\n");
  };
  using Policy = const PolicyTraffic&;
  if (plan.layout.size.ranks > 1) {
    row("", [](Policy p) { return name_of(p.policy); });
    row("sealed tensors", [](Policy p) { return format_bytes(p.sealed); });
    row("open tensors", [](Policy p) { return format_bytes(p.open); });
    row("gradients of sealed ones", [](Policy p) { return format_bytes(p.sealed_gradients); });
    row("gradients of open ones", [](Policy p) { return format_bytes(p.open_gradients); });
    row("sealed tensors of a micro-batch",
        [](Policy p) { return std::to_string(p.sealed_tensors); });
    row("at most into one stage", [](Policy p) { return std::to_string(p.most_sealed_tensors); });
  }
  if (plan.layout.tensor > 1) {
    fmt::print("{:36} {:>11}\n", "within tensor groups", format_bytes(plan.traffic.tensor_groups));
  }
  fmt::print("{:36} {:>11}\n", "gradients, over replicas",
             format_bytes(plan.traffic.replica_gradients));
  if (plan.traffic.replica_parameters > 0) {
    fmt::print("{:36} {:>11}\n", "parameters, over replicas",
               format_bytes(plan.traffic.replica_parameters));
  }
  if (plan.traffic.shared_gradients > 0) {
    fmt::print("{:36} {:>11}\n", "gradients, over ranks that share",
               format_bytes(plan.traffic.shared_gradients));
  }
}

void print_time(const Plan& plan, const Cluster& cluster) {
  const StepTime& time = plan.time;
  fmt::print("\n");
  print_wrapped(fmt::format(
      "A step of {} tokens takes {}: {} for the pipeline (bubble {:.1f} %: waiting, beside "
      "computing), {} for sums of gradients, {} for the update. That is {}, and {:.1f} % of the "
      "FLOP/s{} (model FLOP utilisation).",
      format_count(plan.tokens), seconds_text(time.seconds), seconds_text(time.pipeline.seconds),
      100 * time.pipeline.bubble, seconds_text(time.sums), seconds_text(time.update),
      format_rate(time.tokens_per_second, "tokens"), 100 * time.utilisation,
      cluster.device.efficiency < 1 ? fmt::format(", of which products are taken to reach {:.0f} %",
                                                  100 * cluster.device.efficiency)
                                    : ""));
}

void print_prefill(const PrefillMemory& prefill) {
  fmt::print("\n");
  if (prefill.representations == 0) {
    print_wrapped("A prompt keeps no representations of layers: there is one stream.");
    return;
  }
  std::string text =
      fmt::format("A prompt of {} tokens keeps {} of each: {}", prefill.context,
                  counted(prefill.representations, "representation"), format_bytes(prefill.whole));
  if (prefill.chunk < prefill.context) {
    text +=
        fmt::format(", {} in chunks of {}",
                    format_bytes(prefill.per_device_chunked * static_cast<double>(prefill.devices)),
                    prefill.chunk);
  }
  text += ".";
  if (prefill.devices > 1) {
    text += fmt::format(
        " Split along tokens over the {} devices of a node (parallel.tensor) that were {} each",
        prefill.devices, format_bytes(prefill.per_device));
    if (prefill.chunk < prefill.context) {
      text += fmt::format(", {} in chunks", format_bytes(prefill.per_device_chunked));
    }
    text += ".";
  }
  print_wrapped(text);
}

void print_plan(const Plan& plan, const PlannedModel& model, const Cluster& cluster) {
  print_wrapped(fmt::format(
      "{} ({} parameters) on {} of {} of cluster {}, {}: {}; {} of {} tokens a replica and step.",
      model.recipe.name, format_count(static_cast<double>(plan.parameters)),
      plan.layout.processes(), counted(cluster.devices, "device"), cluster.name,
      cluster.device.name, plan.layout.describe(),
      plan.layout.micro_batches == 1 ? "1 micro-batch"
                                     : fmt::format("{} micro-batches", plan.layout.micro_batches),
      plan.layout.tokens));
  print_memory(plan, model);
  print_mixing(plan, model.recipe);
  print_traffic(plan);
  print_time(plan, cluster);
  print_prefill(plan.prefill);
}

std::string settings_of(const Layout& layout) {
  return fmt::format(
      "parallel.data={} parallel.pipeline={} parallel.virtual={} parallel.tensor={} "
      "parallel.policy={} train.recompute={}{}",
      layout.data, layout.size.ranks, layout.size.virtual_stages, layout.tensor,
      name_of(layout.policy), layout.recompute,
      layout.shard_optimizer ? " parallel.shard_optimizer=true" : "");
}

void print_search(const SearchResult& result, const PlannedModel& model, const Cluster& cluster) {
  if (result.best.empty()) {
    print_wrapped(fmt::format("None of {} of {} fits cluster {}. Nearest comes {}: {}",
                              counted(result.candidates, "layout"), model.recipe.name, cluster.name,
                              result.nearest.describe(), result.why_not));
    return;
  }
  fmt::print("{:>4} {:>8} {:>7} {:>6} {:>9} {:>7}   {:>9} {:>9} {:>9} {:>7} {:>6} {:>9}\n", "data",
             "pipeline", "virtual", "tensor", "recompute", "devices", "naive", "report", "owned",
             "bubble", "MFU", "memory");
  for (const FoundLayout& found : result.best) {
    const Layout& layout = found.layout;
    const auto seconds = [&](int i) {
      const double time = found.seconds_by_policy[i];
      return std::isfinite(time) ? seconds_text(time) : std::string("-");
    };
    fmt::print(
        "{:>4} {:>8} {:>7} {:>6} {:>9} {:>7}   {:>9} {:>9} {:>9} {:>5.1f} % {:>4.1f} % {:>9}\n",
        layout.data, layout.size.ranks, layout.size.virtual_stages, layout.tensor,
        layout.recompute ? "yes" : "no", layout.processes(), seconds(0), seconds(1), seconds(2),
        100 * found.time.pipeline.bubble, 100 * found.time.utilisation,
        format_bytes(found.fullest));
  }
  fmt::print("\n");
  print_wrapped(fmt::format(
      "Of {}, the fastest that fit, with the time of a step by policy. The first one is",
      counted(result.candidates, "layout")));
  fmt::print("  --set {}\n", settings_of(result.best.front().layout));
  if (result.best.front().layout.processes() < cluster.devices) {
    fmt::print("\n");
    print_wrapped(fmt::format(
        "It leaves {} idle: a step has {} (train.accumulate), which replicas share and pipelines "
        "are filled with. More of them could use more devices.",
        counted(cluster.devices - result.best.front().layout.processes(), "device"),
        counted(model.recipe.train.accumulate, "part")));
  }
  if (!result.why_not.empty()) {
    fmt::print("\n");
    print_wrapped(fmt::format("Of those looked at that do not fit, nearest comes {}: {}",
                              result.nearest.describe(), result.why_not));
  }
}

void write_cluster_file(const PlanOptions& options) {
  std::string found;
  write_new("--write-cluster", options.write_cluster, "file", [&] {
    Cluster cluster = measure_this_machine(options.devices > 0 ? options.devices : 1);
    std::string step;
    if (!options.recipe.empty()) {
      const PlannedModel model(load_recipe(find_recipe(options.recipe), options.overrides));
      const double seconds = measure_step(model, cluster.devices);
      cluster = fitted_to(seconds, model, cluster);
      step = fmt::format("; a step of {} takes one {}", model.recipe.name, seconds_text(seconds));
    }
    write_file(options.write_cluster, cluster_to_json(cluster).dump(2) + "\n");
    found =
        fmt::format("{} of {:.1f} GFLOP/s and {:.1f} GB/s{}", counted(cluster.devices, "device"),
                    cluster.device.efficiency * cluster.device.flops.float32 / 1e9,
                    cluster.device.bandwidth / 1e9, step);
  });
  fmt::print("{}: {}\n", options.write_cluster, found);
}

void run_inference_plan(const PlanOptions& options) {
  require_usage(
      options.cluster.empty() && options.write_cluster.empty() && !options.search &&
          options.devices == 0 && options.prompt.chunk == 0,
      "--model and --weights plan writing tokens on this machine, and know only --recipe, "
      "--set, --context, --memory and --json beside");
  InferencePlanOptions inference = options.inference;
  inference.recipe = options.recipe;
  inference.overrides = options.overrides;
  inference.context = options.prompt.context;
  inference.json = options.json;
  plan_inference(inference);
}

void run_plan(const PlanOptions& options) {
  if (options.inference.is_asked()) return run_inference_plan(options);
  require_usage(options.inference.memory == 0, "--memory is for --model and --weights");
  if (!options.write_cluster.empty()) {
    require_usage(options.cluster.empty() && !options.search && !options.json,
                  "--write-cluster measures this machine and plans nothing; plan with --recipe and "
                  "--cluster afterwards");
    return write_cluster_file(options);
  }
  require_usage(options.devices == 0,
                "--devices is for --write-cluster; a cluster file says its own");
  require_usage(!options.recipe.empty() && !options.cluster.empty(),
                "name a recipe and a cluster: --recipe recipes/large-block-attn-res.json --cluster "
                "recipes/clusters/h100-node.json");
  const PlannedModel model(load_recipe(find_recipe(options.recipe), options.overrides));
  const Cluster cluster = read_cluster(options.cluster);
  if (options.search) {
    require_usage(options.prompt.context == 0 && options.prompt.chunk == 0,
                  "--context and --chunk are about the plan of one layout: leave --search out");
    const SearchResult result = search_layouts(model, cluster);
    if (options.json) {
      fmt::print("{}\n", search_to_json(result).dump());
    } else {
      print_search(result, model, cluster);
    }
    return;
  }
  const Plan plan = make_plan(model, layout_of(model.recipe), cluster, options.prompt);
  if (options.json) {
    fmt::print("{}\n", plan_to_json(plan, model.recipe, cluster).dump());
  } else {
    print_plan(plan, model, cluster);
  }
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "plan",
      "Say what training on a cluster, or writing here, would take. Shows memory of each device,\n"
      "traffic and time of a step and memory of a prompt, or the fastest layouts; of a model that\n"
      "writes memory and the time of a token. Neither cluster nor weights need be there.");
  const auto options = std::make_shared<PlanOptions>();
  add_path(command, "--recipe RECIPE", options->recipe,
           "a JSON file, or the name of one of those in recipes/");
  add_path(command, "--cluster FILE", options->cluster,
           "a JSON file of devices and links, such as those in recipes/clusters/");
  add_option(command, "--set KEY=VALUE", options->overrides,
             "override keys of the recipe, for example parallel.pipeline=8");
  add_whole(command, "--context T", options->prompt.context, {1, int64_t{1} << 40},
            "tokens of the prompt whose memory is told (default: train.context), or of a sequence "
            "that is written (8192)");
  add_whole(command, "--chunk K", options->prompt.chunk, {1, int64_t{1} << 40},
            "tokens of the prompt that are read at once (default: all)");
  command.add_flag("--search", options->search,
                   "list the fastest layouts that fit, in place of the recipe's own: "
                   "parallel.data, pipeline, virtual, tensor and policy, and train.recompute");
  add_path(command, "--write-cluster FILE", options->write_cluster,
           "measure this machine and write a cluster file of it; with --recipe, one whose devices "
           "take as long for its steps as here");
  add_whole(command, "--devices N", options->devices, {1, 4096},
            "with --write-cluster, as so many processes of one thread (default: 1)");
  add_path(command, "--model PATH", options->inference.model,
           "a model that is to write here: a directory, a GGUF file, an adapter");
  add_option(command, "--weights TYPE", options->inference.weights,
             "with --recipe, such a model with weights of this type: one of generate --weights, or "
             "q4_k_s, q4_k_m, q5_k_m or q6_k as in a GGUF file");
  add_option(command, "--memory GIB", options->inference.memory,
             "of another machine, as fast as this one (default: this one's)")
      ->check(CLI::PositiveNumber);
  command.add_flag("--json", options->json, "print JSON");
  group_options(command, "Memory of a prompt", {"--context", "--chunk"});
  group_options(command, "Writing with a model", {"--model", "--weights", "--memory"});
  group_options(command, "A cluster file of this machine", {"--write-cluster", "--devices"});
  command.footer(
      "docs/parallel.md explains what is counted, docs/home.md what a model takes here.\n\n"
      "Examples:\n"
      "  attnres plan --recipe recipes/large-block-attn-res.json \\\n"
      "    --cluster recipes/clusters/h100-node.json \\\n"
      "    --set parallel.data=2 parallel.pipeline=4\n"
      "  attnres plan --recipe recipes/kimi-linear-48b.json \\\n"
      "    --cluster recipes/clusters/h800-32-nodes.json --search\n"
      "  attnres plan --write-cluster here.json --devices 2 --recipe "
      "recipes/kimi-small-residual.json\n"
      "  attnres plan --recipe recipes/kimi-linear-48b.json --weights q4_k_m --memory 32");
  command.callback([options] { run_plan(*options); });
}

}  // namespace attnres
