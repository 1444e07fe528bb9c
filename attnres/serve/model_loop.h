// The thread that computes: it alone steps the engine, for requests that come from any number of
// others.
//
// Sequences wait by client, and clients take turns, so that one who asks for many does not hold up
// the rest; of what runs, the engine computes a token each and pieces of prompts in every step.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/backend.h"
#include "attnres/serve/exchange.h"
#include "attnres/serve/fair_queue.h"

namespace attnres {

class ModelLoop : public Backend {
 public:
  // The engine must outlive it. `slots` sequences run at once, and `queue` wait.
  ModelLoop(TextEngine& engine, int64_t slots, int64_t queue);
  ~ModelLoop() override;  // what waits or runs fails

  const ModelDescription& model() const override { return engine_.model(); }
  int64_t context() const override { return engine_.context(); }
  void check(const TextRequest& request) const override { engine_.check(request); }
  std::vector<int32_t> prompt_ids(const std::string& text) const override {
    return engine_.prompt_ids(text);
  }
  std::vector<int32_t> encode(const std::string& text) const override {
    return engine_.encode(text);
  }
  std::vector<int32_t> encode_framed(const std::string& text) const override {
    return engine_.encode_framed(text);
  }
  std::string decode(const std::vector<int32_t>& ids) const override { return engine_.decode(ids); }
  std::string token_text(int32_t id) const override { return engine_.token_text(id); }
  std::shared_ptr<const TokenConstraint> constraint(const AnswerGrammar& answer) const override {
    return engine_.constraint(answer);
  }
  TextRequest chat_request(const std::string& conversation) const override {
    return engine_.chat_request(conversation);
  }

  std::shared_ptr<Exchange> submit(std::vector<TextRequest> sequences, const std::string& client,
                                   std::function<bool()> gone) override;

  // Ends all that waits or runs with this error, and takes nothing any more.
  void end(const std::string& error);

  LoopStatus status() const override;

 private:
  struct Sequence {
    std::shared_ptr<Exchange> exchange;
    size_t index = 0;  // in the exchange
    TextRequest request;
  };

  void run();
  void admit(std::vector<Sequence>* admitted);
  void begin(Sequence sequence);
  void drop_ended();
  void step();
  void fail_running(std::string_view error, bool shuts_down = false);
  void fail_all(std::string_view error);
  void count(int64_t finished);
  void finish(const Sequence& sequence, std::string_view error, bool shuts_down = false);

  TextEngine& engine_;
  const int64_t slots_, queue_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  FairQueue<Sequence> waiting_;
  std::optional<std::string> end_;  // the error that ended it
  LoopStatus status_;

  std::map<int64_t, Sequence> running_;  // by the engine's number; the thread's alone
  std::thread thread_;
};

}  // namespace attnres
