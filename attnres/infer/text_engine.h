// Texts continued by a model, many at once: an engine with the model's tokenizer. No tensor
// library, so that a program which has none can be built on it (find_package(attnres COMPONENTS
// engine)).
//
//   attnres::TextEngine engine("models/tiny-shakespeare");
//   engine.submit({.text = "KING HENRY:"});
//   while (!engine.idle()) {
//     for (const attnres::TextUpdate& update : engine.step()) std::cout << update.text;
//   }
//
// One thread submits, cancels and steps; const functions that look only at the model (`check`,
// `model`, `notes`, `context`, `constraint`, text and tokens) may be called by any number of others
// meanwhile.
//
// What goes wrong is thrown as std::exception with a message for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "attnres/chat/reply_piece.h"
#include "attnres/grammar/answer_grammar.h"
#include "attnres/infer/generation_settings.h"
#include "attnres/infer/model_description.h"

namespace attnres {

class InferenceModel;
class ModelDirectory;
struct ReplyPlan;

struct TextEngineSettings {
  EngineSettings engine = {};  // a context of 0 is the model's, a larger one is refused
  // How weights are kept: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_K, q5_K or q6_K; if
  // empty, as a GGUF file has them, and f32 of a model directory.
  std::string weights = {};
  int threads = 0;  // of the process; 0 leaves them as they are
  // Whether `model().sampling` is what the model's generation_config.json says.
  bool generation_config = true;
};

struct TextRequest {
  std::string text = {};                        // as TextEngine::prompt_ids takes it
  std::vector<int32_t> ids = {};                // in place of a text, as they are
  GenerationSettings generation = {};           // the model's ends are added, the vocabulary is its
  std::vector<std::string> stops = {};          // the text ends before the first of these
  bool past_ends = false;                       // goes on past the model's ends
  std::shared_ptr<const ReplyPlan> reply = {};  // of chat_request: how the answer is read
};

struct TextMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct TextUpdate : RequestUpdate {
  std::string text = {};  // whole characters that are new; none of a model without a tokenizer
  std::vector<ReplyPiece> pieces = {};  // of an answer to a conversation: its parts that are new
};

class TextEngine {
 public:
  // Loads a model directory, a run's folder or a GGUF file.
  explicit TextEngine(const std::filesystem::path& path, const TextEngineSettings& settings = {});
  // With a model of that path which is open already, and must outlive it.
  TextEngine(const std::filesystem::path& path, const ModelDirectory& directory,
             const InferenceModel& model, const EngineSettings& settings,
             bool generation_config = true);
  TextEngine(const TextEngine&) = delete;
  TextEngine& operator=(const TextEngine&) = delete;
  ~TextEngine();

  // Takes a request, and gives it a number. Throws, and takes nothing, as Engine::submit and
  // StopStrings do, and on a text where the model has no tokenizer that is read here.
  int64_t submit(const TextRequest& request);
  // Throws where `submit` does, and takes nothing.
  void check(const TextRequest& request) const;
  // Ends a request; nothing more comes of it. False if it has ended.
  bool cancel(int64_t request);
  // One pass of the model over what requests need next.
  std::vector<TextUpdate> step();
  bool idle() const;
  EngineCounts counts() const;

  int64_t context() const;  // most tokens of a sequence, prompt and continuation
  // What of the model's files is not read, for people: a sentence each, as the command line prints
  // it (ModelDirectory::notes).
  const std::vector<std::string>& notes() const;
  // Its `sampling` is how the model's authors would have it sampled; requests have their own.
  const ModelDescription& model() const;

  // Text and tokens. These throw Error where the model has no tokenizer that is read here, on text
  // that it cannot encode, and on ids that it does not have.
  //
  // A text to continue: after the tokens that the tokenizer puts before one, as its begin-of-text
  // token. Where there is none, an empty text is the end of a document, after which another begins.
  std::vector<int32_t> prompt_ids(const std::string& text) const;
  std::vector<int32_t> encode(const std::string& text) const;         // the text's own alone
  std::vector<int32_t> encode_framed(const std::string& text) const;  // with those around a text
  std::string decode(const std::vector<int32_t>& ids) const;
  std::string token_text(int32_t id) const;  // its bytes; none of a control token
  // What keeps an answer to a form (GenerationSettings::constraint). Forms that were used last are
  // kept; another one takes up to some seconds. Throws Error that says what is wrong of it, of a
  // schema with the place.
  std::shared_ptr<const TokenConstraint> constraint(const AnswerGrammar& answer) const;
  // A conversation in the format that the model was taught, up to where the assistant goes on, and
  // what ends its answer. Throws Error where that format is not known, and where it takes no such
  // conversation.
  TextRequest chat_request(const std::vector<TextMessage>& messages) const;
  // The same of JSON in the form of OpenAI's requests: "messages", with all that a template reads
  // of one, and if wanted "tools", "tool_choice" ("auto", "none", "required", or a function that
  // the answer calls), "documents", "chat_template_kwargs" (further variables of the template),
  // "add_generation_prompt" (true; false ends the conversation) and "continue_final_message"
  // (false; true goes on with the last message).
  TextRequest chat_request(const std::string& conversation) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace attnres
