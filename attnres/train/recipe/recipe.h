// A recipe: everything that decides how a model is made, read from a JSON file of recipes/ and
// overridden key by key from the command line.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/model/config.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct TrainConfig {
  int64_t steps = 1000;
  int64_t batch_size = 16;      // sequences a step
  int64_t accumulate = 1;       // parts that a step's sequences are computed in; divides batch_size
  int64_t context = 256;        // tokens a sequence
  double learning_rate = 1e-3;  // at its peak
  std::string schedule = "cosine";  // or "wsd": warm-up, stable, linear decay
  int64_t warmup = 100;             // steps of linear warm-up
  double decay_fraction = 0.2;      // wsd: the last part of the steps, in which the rate decays
  double final_fraction = 0.1;      // of the peak rate, at the last step
  std::string optimizer = "adamw";  // or "muon": Muon for matrices, AdamW for all else
  double weight_decay = 0.1;        // decoupled; on linear maps only
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  // AdamW
  double muon_momentum = 0.95;
  // Factors on the learning rate of some parameters: {"*.query_proj": 0.1}; see learning_rates.h.
  NamedNumbers rates = {};
  double clip = 1.0;                  // largest gradient norm; 0 switches clipping off
  double expert_balance_rate = 1e-3;  // by which a step moves the experts' router biases
  std::string precision = "float32";  // or "bfloat16": of activations and products
  bool recompute = false;             // activation recomputation: less memory, more time
  int64_t seed = 1;
  int64_t eval_every = 100;
  int64_t eval_tokens = 65536;  // of the validation text in the evaluations during training
  int64_t checkpoint_every = 100;
  int64_t sample_tokens = 200;  // generated at each checkpoint for samples.jsonl; 0 for none

  template <class V>
  void visit(V& v) {
    v("steps", steps);
    v("batch_size", batch_size);
    v("accumulate", accumulate);
    v("context", context);
    v("learning_rate", learning_rate);
    v("schedule", schedule);
    v("warmup", warmup);
    v("decay_fraction", decay_fraction);
    v("final_fraction", final_fraction);
    v("optimizer", optimizer);
    v("weight_decay", weight_decay);
    v("beta1", beta1);
    v("beta2", beta2);
    v("epsilon", epsilon);
    v("muon_momentum", muon_momentum);
    v("rates", rates);
    v("clip", clip);
    v("expert_balance_rate", expert_balance_rate);
    v("precision", precision);
    v("recompute", recompute);
    v("seed", seed);
    v("eval_every", eval_every);
    v("eval_tokens", eval_tokens);
    v("checkpoint_every", checkpoint_every);
    v("sample_tokens", sample_tokens);
  }
};

struct DataConfig {
  double validation_fraction = 0.05;  // of the text, held out; not where that has its own
  std::string order = "epochs";       // or "drawn": see RowOrder (data/train_batches.h)
  std::string packing = "stream";     // or "documents": see Packing (data/packing.h)
  bool mask_documents = false;        // documents of a row do not see each other
  // Shares of the rows that tokenized sources get, by their names, relative to each other; their
  // lengths where none are given.
  NamedNumbers weights = {};

  template <class V>
  void visit(V& v) {
    v("validation_fraction", validation_fraction);
    v("order", order);
    v("packing", packing);
    v("mask_documents", mask_documents);
    v("weights", weights);
  }
};

// How many processes train, and what each does: docs/parallel.md. A run's numbers do not depend on
// it, but for rounding.
struct ParallelConfig {
  int64_t data = 1;              // replicas of the model, each with a part of a step's sequences
  int64_t pipeline = 1;          // processes that share a replica's layers
  int64_t virtual_stages = 1;    // stages of each of them
  int64_t tensor = 1;            // processes that share every layer of theirs
  std::string policy = "owned";  // or "naive", "report": what crosses (parallel/transfers.h)
  // Each replica keeps the moments of a part of the parameters, which it updates for all.
  bool shard_optimizer = false;
  double timeout = 600;  // seconds that a process waits for another before it ends the run

  template <class V>
  void visit(V& v) {
    v("data", data);
    v("pipeline", pipeline);
    v("virtual", virtual_stages);
    v("tensor", tensor);
    v("policy", policy);
    v("shard_optimizer", shard_optimizer);
    v("timeout", timeout);
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

}  // namespace attnres
