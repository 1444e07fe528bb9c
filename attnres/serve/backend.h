// What endpoints answer with: a model that continues texts, for many that ask at once. model_loop.h
// computes; a test may have one that has no model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/exchange.h"

namespace attnres {

struct LoopStatus {
  int64_t slots = 0;                 // sequences that run at once at most
  int64_t waiting = 0, running = 0;  // sequences
  int64_t finished = 0;              // since the start, those that failed among them
  EngineCounts engine = {};          // after the last step
};

// All from any thread.
class Backend {
 public:
  virtual ~Backend() = default;

  // As the functions of these names of TextEngine.
  virtual const ModelDescription& model() const = 0;
  virtual int64_t context() const = 0;
  virtual void check(const TextRequest& request) const = 0;
  virtual std::vector<int32_t> prompt_ids(const std::string& text) const = 0;
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  virtual std::vector<int32_t> encode_framed(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual std::string token_text(int32_t id) const = 0;
  virtual std::shared_ptr<const TokenConstraint> constraint(const AnswerGrammar& answer) const = 0;
  virtual TextRequest chat_request(const std::string& conversation) const = 0;

  // Sequences of which each is `check`ed. `gone` is asked before each step: what waits or runs of a
  // client that has gone fails. Throws ApiError where there is no room for all to wait, or where
  // nothing is taken any more.
  virtual std::shared_ptr<Exchange> submit(std::vector<TextRequest> sequences,
                                           const std::string& client,
                                           std::function<bool()> gone) = 0;
  virtual LoopStatus status() const = 0;
};

}  // namespace attnres
