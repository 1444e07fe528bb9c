// A recipe: everything that decides how a model is made, read from a JSON file of recipes/ and
// overridden key by key from the command line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/model/config.h"
#include "attnres/parameters/precision.h"
#include "attnres/support/config_key.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// More than anyone means, and few enough that products of these do not overflow.
inline constexpr int64_t kMostSteps = 1'000'000'000;
inline constexpr int64_t kMostRows = int64_t{1} << 24;  // of a step; see RowOrder::drawn

struct TrainConfig {
  int64_t steps = 1000;
  int64_t batch_size = 16;
  int64_t accumulate = 1;
  int64_t context = 256;
  double learning_rate = 1e-3;
  std::string schedule = "cosine";
  int64_t warmup = 100;
  double decay_fraction = 0.2;
  double final_fraction = 0.1;
  std::string optimizer = "adamw";
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double muon_momentum = 0.95;
  NamedNumbers rates = {}, decays = {};  // see update_factors.h
  double clip = 1.0;
  double expert_balance_rate = 1e-3;
  std::string precision = kFloat32Precision;
  bool recompute = false;
  int64_t seed = 1;
  int64_t eval_every = 100;
  int64_t eval_tokens = 65536;
  int64_t checkpoint_every = 100;
  int64_t sample_tokens = 200;

  template <class V>
  void visit(V& v) {
    v("steps", steps, "optimizer steps", from_to(1, kMostSteps));
    v("batch_size", batch_size, "sequences a step", from_to(1, kMostRows));
    v("accumulate", accumulate, "equal parts that a step's sequences are computed in", at_least(1));
    v("context", context, "tokens a sequence", from_to(2, kMostContext));
    v("learning_rate", learning_rate, "learning rate at its peak", from_to(0, 10));
    v("schedule", schedule,
      "how the learning rate falls after the warm-up: along half a cosine, or (wsd) linearly in "
      "the "
      "last part of the steps",
      one_of({"cosine", "wsd"}));
    v("warmup", warmup, "steps of linear warm-up", at_least(0));
    v("decay_fraction", decay_fraction,
      "of schedule wsd: the last part of the steps, in which the rate falls", from_to(0, 1));
    v("final_fraction", final_fraction, "part of the peak rate that is left at the last step",
      from_to(0, 1));
    v("optimizer", optimizer, "what updates the parameters",
      one_of({{"adamw"}, {"muon", "Muon for matrices, AdamW for all else"}}));
    v("weight_decay", weight_decay,
      "decoupled weight decay, of linear maps, and of what train.decays names", from_to(0, 10));
    v("beta1", beta1, "of AdamW: decay of the first moment", fraction_below_one());
    v("beta2", beta2, "of AdamW: decay of the second moment", fraction_below_one());
    v("epsilon", epsilon, "of AdamW: what the root of the second moment is added to",
      from_to(1e-30, 1));  // with 0, a gradient of 0 would give NaN
    v("muon_momentum", muon_momentum, "of Muon: momentum", fraction_below_one());
    v("rates", rates,
      "factors on the learning rate of parameters, by patterns of their names: "
      "{\"*.query_proj\": 0.1}",
      from_to(0, 1000));
    v("decays", decays,
      "factors on the weight decay of parameters, by patterns of their names: "
      "{\"*_res_proj.weight\": 1}; without one linear maps have 1, all else 0",
      from_to(0, 1000));
    v("clip", clip, "largest norm of the gradient, which is scaled down to it; 0 for none",
      from_to(0, 1e9));
    v("expert_balance_rate", expert_balance_rate,
      "by how much a step moves the biases of the experts' router", from_to(0, 1));
    v("precision", precision, "dtype of activations and matrix products",
      one_of({{kFloat32Precision}, {kBfloat16Precision}}));
    v("recompute", recompute, "activation recomputation: less memory, more time");
    v("seed", seed, "of the model's start and of the order of the text", at_least(0));
    v("eval_every", eval_every, "steps between evaluations", at_least(1));
    v("eval_tokens", eval_tokens,
      "tokens of the validation text that an evaluation during training reads", at_least(1));
    v("checkpoint_every", checkpoint_every, "steps between checkpoints", at_least(1));
    v("sample_tokens", sample_tokens,
      "tokens generated at each checkpoint for samples.jsonl; 0 for none",
      from_to(0, kMostContext));
  }
};

struct DataConfig {
  double validation_fraction = 0.05;
  std::string order = "epochs";    // RowOrder (data/train_batches.h)
  std::string packing = "stream";  // Packing (data/packing.h)
  bool mask_documents = false;
  NamedNumbers weights = {};

  template <class V>
  void visit(V& v) {
    v("validation_fraction", validation_fraction,
      "part of the text that is held out; not where --validation names a text",
      Limits{.least = 0, .most = 0.5, .above = true});
    v("order", order, "in which order rows of the text are taken",
      one_of({{"epochs", "each row once, then again in another order"},
              {"drawn", "any rows at random"}}));
    v("packing", packing, "what a row of `train.context` tokens is",
      one_of(
          {{"stream", "rows wherever documents end"}, {"documents", "rows of whole documents"}}));
    v("mask_documents", mask_documents, "whether documents of a row do not see each other");
    v("weights", weights,
      "shares of the rows that tokenized sources get, by their names, relative to each other; "
      "their lengths where none are given",
      more_than(0));
  }
};

// How many processes train, and what each does: docs/parallel.md. A run's numbers do not depend on
// it, but for rounding.
struct ParallelConfig {
  int64_t data = 1;
  int64_t pipeline = 1;
  int64_t virtual_stages = 1;
  int64_t tensor = 1;
  std::string policy = "owned";  // TransferPolicy (parallel/transfers.h)
  bool shard_optimizer = false;
  double timeout = 600;

  template <class V>
  void visit(V& v) {
    v("data", data, "replicas of the model, each with a part of a step's sequences", dimension(1));
    v("pipeline", pipeline, "processes that share a replica's layers", dimension(1));
    v("virtual", virtual_stages, "stages of each process of a pipeline", dimension(1));
    v("tensor", tensor, "processes that share every layer of theirs", dimension(1));
    v("policy", policy, "what crosses from stage to stage: docs/parallel.md",
      one_of({"naive", "report", "owned"}));
    v("shard_optimizer", shard_optimizer,
      "whether each replica keeps the moments of a part of the parameters, which it updates for "
      "all");
    v("timeout", timeout, "seconds that a process waits for another before it ends the run",
      more_than(0));
  }
  int64_t processes() const { return data * pipeline * tensor; }
  // "2 replicas with 4 pipeline ranks of 2 processes each are 16 processes"
  std::string describe_processes() const;
};

struct Recipe {
  std::string name;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  ParallelConfig parallel;
  TokenizerConfig tokenizer;
};

// The precision of a model that these settings train.
Precision precision_of(const TrainConfig& train);

// Checks everything that can be checked without the data. Throws UsageError naming the key.
Recipe parse_recipe(const Json& json);
// parse_recipe of what a file holds with overrides applied, beside what was `written` there. Where
// that is refused for the same reason, the message names the file.
Recipe parse_recipe_of(const std::filesystem::path& file, const Json& written, const Json& recipe);
// A recipe's file, which is not checked further. Throws UsageError unless it holds an object.
Json read_recipe(const std::filesystem::path& file);
// Applies overrides (each key=value, see apply_override) to a recipe or a part of one. Where one
// takes a choice back, the settings of what was chosen go with it, unless they are overridden too:
//   model.depth_mixing.type  the settings that the new mechanism does not have
//   model.attention          those of a kind of attention that is no longer there
//   model.experts.count=0    those of the experts
//   tokenizer.kind           the size of the vocabulary
// Returns the keys that went, with their values: "model.depth_mixing.block_size=4".
std::vector<std::string> apply_overrides(Json& recipe, const std::vector<std::string>& overrides);
// The file with `overrides` applied.
Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides);
// The recipe with every default filled in; parse_recipe reads it back.
Json recipe_to_json(const Recipe& recipe);
// Every key that a recipe may have, and what its definition says of it.
std::vector<ConfigKey> recipe_keys();
// By which editors complete and check recipes; see config_schema.h.
Json recipe_schema();

}  // namespace attnres
