// Many sequences at once, by continuous batching: requests join and leave at any step, and a step
// is one pass of the model over a token of each sequence that is being continued and over pieces of
// the prompts that are being read.
//
//   Engine engine(model, {.context = 4096});
//   const int64_t request = engine.submit({.prompt = ids});
//   while (!engine.idle()) {
//     for (const RequestUpdate& update : engine.step()) ...
//   }
//
// A prompt is read in pieces, so that depth states exist of a piece only, and a long prompt does
// not hold up others for longer than a step. One that begins as a sequence does that the engine
// still has goes on from there: sequences stay after their end, until room is needed, the longest
// unused first. Where layers have recurrent states, it goes on from the last place before the two
// part of which states were kept (snapshot_lengths.h), or from the end of the other.
//
// A request whose numbers are not finite fails at the first piece that has such, of which nothing
// is kept: others that begin as it does compute their own.
//
// A sequence's numbers do not depend on the others beyond rounding; `deterministic` makes every bit
// the same whatever else runs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attnres/grammar/token_constraint.h"
#include "attnres/infer/generation_settings.h"
#include "attnres/infer/held_sequences.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/sampling.h"
#include "attnres/infer/sequence_decoder.h"
#include "attnres/infer/snapshot_lengths.h"

namespace attnres {

struct GenerationRequest {
  std::vector<int32_t> prompt = {};
  GenerationSettings settings = {};
};

class Engine {
 public:
  // The model must outlive it. Throws UsageError, "context: ", on settings that make no sense, and
  // Error where what they keep does not fit into memory, with a context that does. Where the model
  // is a tensor group's, a pass that fails ends the group.
  Engine(const InferenceModel& model, const EngineSettings& settings);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes a request, and gives it a number; requests begin in this order. Throws, and takes
  // nothing: UsageError on settings that `check` refuses, Error on a prompt without tokens, with a
  // token outside the model's vocabulary, or that leaves no room in the context.
  int64_t submit(GenerationRequest request);
  // Throws where `submit` does, and takes nothing; from any thread.
  void check_request(const GenerationRequest& request) const;
  // Ends a request; nothing more comes of it. False if it has ended.
  bool cancel(int64_t request);
  // Computes up to step_tokens tokens; in the order of requests, at most one update of each.
  // Throws nothing that is one request's fault: that ends the request, or all of a pass that
  // failed.
  std::vector<RequestUpdate> step();
  bool idle() const { return queued_.empty() && running_.empty(); }

  EngineCounts counts() const;
  const EngineSettings& settings() const { return settings_; }

 private:
  struct Request {
    int64_t number = 0;
    GenerationSettings settings;
    std::vector<int32_t> ids;  // the prompt and what was generated
    int64_t prompt_tokens = 0;
    int64_t limit = 0;  // most tokens of both
    // Once it runs.
    int64_t sequence = -1;
    int64_t shared = 0;
    SnapshotLengths snapshots = {};
    TokenCounts counts = {};
    std::unique_ptr<ConstraintState> constraint = {};  // where the settings have one
    std::vector<TokenLogprobs> prompt_logprobs = {};   // so far
    TokensDepthWeights depth = {};                     // since the last update
    at::Tensor hidden_sum = {};                        // [D] float64, of the prompt so far

    int64_t generated() const { return static_cast<int64_t>(ids.size()) - prompt_tokens; }
    bool is_full() const { return static_cast<int64_t>(ids.size()) == limit; }
  };
  // Tokens of a request that a pass computes, from row `row` on.
  struct Part {
    Request* request = nullptr;
    int64_t tokens = 0, row = 0;
  };

  bool shares(const Request& request) const;
  bool takes_snapshots() const;
  KnownPrefix known_prefix(const Request& request);
  bool awaits_prefix(const Request& request);
  bool has_room() const;
  bool begin(Request& request);
  void admit();
  std::vector<Part> plan();
  void compute(std::vector<Part> parts, std::vector<RequestUpdate>* updates);
  void choose(const std::vector<Part>& complete, const at::Tensor& hidden_TD,
              std::vector<RequestUpdate>* updates);
  at::Tensor hidden_of(std::vector<Part>& parts);
  void require_finite(const Part& part, const at::Tensor& hidden_TD) const;
  void read_prompt(const Part& part, const at::Tensor& hidden_TD);
  void score_prompt(const Part& part, const at::Tensor& hidden_TD) const;
  static RequestUpdate update_of(Request& request);
  void go_on(Request& request, ChosenToken chosen, RequestUpdate* update);
  void end(int64_t request, bool keep);
  RequestUpdate fail(int64_t request, const std::string& error);

  const InferenceModel& model_;
  EngineSettings settings_;
  SequenceDecoder decoder_;
  HeldSequences held_;
  std::deque<Request> queued_;
  std::map<int64_t, Request> running_;  // by number
  int64_t next_request_ = 0;
  int64_t last_prompt_ = -1;  // the request of which a deterministic step read a piece last
  EngineCounts totals_;       // what is counted over all requests
};

}  // namespace attnres
