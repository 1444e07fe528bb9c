#include "attnres/infer/text_engine.h"

#include <ATen/Parallel.h>

#include <map>
#include <utility>

#include "attnres/infer/engine.h"
#include "attnres/infer/text_stream.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/precision.h"
#include "attnres/support/weight_format.h"

namespace attnres {
namespace {

std::unique_ptr<Tokenizer> tokenizer_if_read(const std::filesystem::path& model) {
  try {
    return model_tokenizer(model);
  } catch (const UnreadTokenizer&) {
    return nullptr;
  }
}

std::unique_ptr<Transformer> load(const std::filesystem::path& folder, const std::string& weights) {
  Precision precision;
  precision.weights =
      weights.empty() ? model_weight_format(folder) : parse_weight_format(weights, "weights");
  return load_model(folder, precision);
}

EngineSettings with_context_of(const std::filesystem::path& folder, EngineSettings settings) {
  const int64_t most = model_context(folder);
  require_usage(settings.context <= most, "context: this model's is {} tokens, got {}", most,
                settings.context);
  if (settings.context == 0) settings.context = most;
  return settings;
}

}  // namespace

struct TextEngine::Parts {
  Parts(const std::filesystem::path& folder, const TextEngineSettings& settings)
      : tokenizer(tokenizer_if_read(folder)),
        ends(model_document_ids(folder).ends()),
        model(load(folder, settings.weights)),
        engine(*model, with_context_of(folder, settings.engine)) {}

  std::unique_ptr<Tokenizer> tokenizer;  // null where it is not read
  std::vector<int64_t> ends;
  std::unique_ptr<Transformer> model;
  Engine engine;
  std::map<int64_t, TextStream> streams;  // by request; none without a tokenizer
};

TextEngine::TextEngine(const std::filesystem::path& model, const TextEngineSettings& settings) {
  if (settings.threads > 0) at::set_num_threads(settings.threads);
  parts_ = std::make_unique<Parts>(find_model_directory(model), settings);
}

TextEngine::~TextEngine() = default;

int64_t TextEngine::submit(const TextRequest& request) {
  const Tokenizer* tokenizer = parts_->tokenizer.get();
  GenerationRequest taken{.prompt = request.ids, .settings = request.generation};
  taken.settings.ends = parts_->ends;
  if (tokenizer != nullptr) taken.settings.vocabulary = tokenizer->vocab_size();
  if (request.ids.empty()) {
    require(tokenizer != nullptr,
            "this model comes without a tokenizer that is read here; give token ids");
    taken.prompt = tokenizer->encode(request.text);
    // In training a document begins after the end of another.
    if (taken.prompt.empty()) taken.prompt.push_back(tokenizer->end_of_document());
  }
  std::optional<TextStream> stream;
  if (tokenizer != nullptr) stream.emplace(*tokenizer, request.stops);
  const int64_t number = parts_->engine.submit(std::move(taken));
  if (stream) parts_->streams.emplace(number, std::move(*stream));
  return number;
}

bool TextEngine::cancel(int64_t request) {
  parts_->streams.erase(request);
  return parts_->engine.cancel(request);
}

std::vector<TextUpdate> TextEngine::step() {
  std::vector<TextUpdate> updates;
  for (RequestUpdate& given : parts_->engine.step()) {
    TextUpdate update{.request = given.request,
                      .token = given.token,
                      .logprobs = std::move(given.logprobs),
                      .stopped = given.stopped,
                      .error = std::move(given.error)};
    const auto stream = parts_->streams.find(given.request);
    if (stream != parts_->streams.end()) {
      if (given.token) update.text = stream->second.add(*given.token);
      if (given.stopped) update.text += stream->second.finish();
      if (stream->second.stopped()) {
        if (!given.stopped) parts_->engine.cancel(given.request);
        update.stopped = StopReason::stop_string;
      }
      if (update.stopped) parts_->streams.erase(stream);
    }
    updates.push_back(std::move(update));
  }
  return updates;
}

bool TextEngine::idle() const {
  return parts_->engine.idle();
}

int64_t TextEngine::context() const {
  return parts_->engine.settings().context;
}

}  // namespace attnres
