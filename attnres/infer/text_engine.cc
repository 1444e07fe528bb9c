#include "attnres/infer/text_engine.h"

#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>

#include <map>
#include <optional>
#include <utility>

#include "attnres/chat/call_beginning.h"
#include "attnres/grammar/answer_grammars.h"
#include "attnres/grammar/free_parts.h"
#include "attnres/infer/engine.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/sampling_defaults.h"
#include "attnres/infer/text_stream.h"
#include "attnres/parameters/precision.h"
#include "attnres/pretrained/find_model.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

std::unique_ptr<Transformer> load(const ModelDirectory& directory, const std::string& weights) {
  Precision precision;
  precision.weights = weights.empty() ? directory.weight_formats()
                                      : WeightFormats(parse_weight_format(weights, "weights"));
  return directory.load(precision);
}

EngineSettings with_context_of(const ModelDirectory& directory, EngineSettings settings) {
  const int64_t most = directory.context();
  require_usage(settings.context <= most, "context: this model's is {} tokens, got {}", most,
                settings.context);
  if (settings.context == 0) settings.context = most;
  return settings;
}

// A run's folder gives its own name, not that of its checkpoint.
std::string name_of(const std::filesystem::path& given) {
  const auto path = std::filesystem::absolute(given).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

ModelDescription describe(const std::filesystem::path& path, const InferenceModel& opened,
                          const Tokenizer* tokenizer, const ChatTemplate& chat) {
  const Transformer& model = opened.transformer();
  ModelDescription description;
  description.name = name_of(path);
  for (const Parameter& parameter : model.parameters().all()) {
    description.parameters +=
        c10::multiply_integers(whole_sizes(model.parameters().part(), parameter));
  }
  description.layers = model.config().layers;
  description.width = model.config().width;
  description.vocabulary = model.vocab_size();
  description.mechanism = model.config().depth_mixing.name();
  if (tokenizer != nullptr) {
    description.tokenizer = tokenizer->kind();
    description.begin_of_text = tokenizer->begin_of_text_name();
    description.end_of_document = tokenizer->token_text(tokenizer->end_of_document());
  }
  // Without a tokenizer there is nothing to make tokens of messages with.
  if (tokenizer != nullptr && chat.error().empty()) {
    description.chat_template = chat.plain() ? "plain" : "jinja";
  }
  description.chat_template_error = chat.error();
  description.chat_names.assign(chat.names().begin(), chat.names().end());
  description.sites = opened.depth_sites();
  return description;
}

}  // namespace

struct TextEngine::Parts {
  Parts(const std::filesystem::path& path, const ModelDirectory& directory,
        const InferenceModel& model, const EngineSettings& settings, bool generation_config)
      : tokenizer(directory.tokenizer_if_read()),
        grammars(tokenizer ? std::make_unique<AnswerGrammars>(*tokenizer) : nullptr),
        chat(directory.chat_template()),
        chat_ends(tokenizer ? chat.ends(*tokenizer) : ChatEnds{}),
        ends(directory.ends(tokenizer.get())),
        engine(model, with_context_of(directory, settings)),
        description(describe(path, model, tokenizer.get(), chat)),
        notes(directory.notes()) {
    if (!generation_config) return;
    const SamplingDefaults sampling = read_sampling_defaults(directory.base());
    sampling.apply_to(description.sampling);
    description.sampling_said = sampling.description();
  }

  const Tokenizer& known_tokenizer() const {
    require(tokenizer != nullptr,
            "this model comes without a tokenizer that is read here; give token ids");
    return *tokenizer;
  }
  GenerationRequest tokenized(const TextRequest& request) const;
  TextRequest asked(const Conversation& conversation) const;

  std::unique_ptr<const InferenceModel> owned;  // null where another has the model
  std::unique_ptr<Tokenizer> tokenizer;         // null where it is not read
  std::unique_ptr<AnswerGrammars> grammars;     // null without one
  ChatTemplate chat;
  ChatEnds chat_ends;
  std::vector<int64_t> ends;
  Engine engine;
  ModelDescription description;
  std::vector<std::string> notes;
  std::map<int64_t, TextStream> streams;  // by request; none without a tokenizer
};

TextEngine::TextEngine(const std::filesystem::path& path, const TextEngineSettings& settings) {
  if (settings.threads > 0) at::set_num_threads(settings.threads);
  const ModelDirectory directory(find_model(path));
  auto model = std::make_unique<LocalModel>(load(directory, settings.weights));
  parts_ =
      std::make_unique<Parts>(path, directory, *model, settings.engine, settings.generation_config);
  parts_->owned = std::move(model);
}

TextEngine::TextEngine(const std::filesystem::path& path, const ModelDirectory& directory,
                       const InferenceModel& model, const EngineSettings& settings,
                       bool generation_config)
    : parts_(std::make_unique<Parts>(path, directory, model, settings, generation_config)) {}

TextEngine::~TextEngine() = default;

GenerationRequest TextEngine::Parts::tokenized(const TextRequest& request) const {
  GenerationRequest taken{.prompt = request.ids, .settings = request.generation};
  if (!request.past_ends) {
    taken.settings.ends.insert(taken.settings.ends.end(), ends.begin(), ends.end());
  }
  if (tokenizer != nullptr) taken.settings.vocabulary = tokenizer->vocab_size();
  if (taken.prompt.empty()) taken.prompt = attnres::prompt_ids(request.text, known_tokenizer());
  return taken;
}

TextRequest TextEngine::Parts::asked(const Conversation& conversation) const {
  const Tokenizer& known = known_tokenizer();
  const std::vector<ChatPart> prompt = chat.rendered(conversation);
  TextRequest request{.ids = chat_prompt_ids(prompt, chat, known),
                      .generation = {.ends = chat_ends.tokens},
                      .stops = chat_ends.texts};
  const auto plan = std::make_shared<const ReplyPlan>(
      plan_reply(chat.reply_format(), prompt, conversation.tools));
  request.reply = plan;
  std::vector<std::string> calls;
  for (const std::string& tool : conversation.must_call) {
    calls.push_back(call_beginning(chat, conversation, tool));
  }
  if (!calls.empty()) {
    request.generation.constraint = grammars->prepare(
        {.kind = AnswerGrammar::Kind::nothing, .free_parts = free_parts_of_calls(*plan, calls)});
  }
  return request;
}

void TextEngine::check(const TextRequest& request) const {
  if (parts_->tokenizer != nullptr) const TextStream stream(*parts_->tokenizer, request.stops);
  parts_->engine.check_request(parts_->tokenized(request));
}

int64_t TextEngine::submit(const TextRequest& request) {
  std::optional<TextStream> stream;
  if (parts_->tokenizer != nullptr) {
    stream.emplace(*parts_->tokenizer, request.stops, request.reply.get(),
                   request.generation.min_tokens);
  }
  const int64_t number = parts_->engine.submit(parts_->tokenized(request));
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
    TextUpdate update{std::move(given)};
    const auto stream = parts_->streams.find(update.request);
    if (stream != parts_->streams.end()) {
      if (update.token) update.text = stream->second.add(*update.token);
      if (update.stopped || stream->second.stopped()) update.text += stream->second.finish();
      update.pieces = stream->second.take_pieces();
      if (stream->second.stopped()) {
        if (!update.stopped) parts_->engine.cancel(update.request);
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

EngineCounts TextEngine::counts() const {
  return parts_->engine.counts();
}

const ModelDescription& TextEngine::model() const {
  return parts_->description;
}

const std::vector<std::string>& TextEngine::notes() const {
  return parts_->notes;
}

std::vector<int32_t> TextEngine::prompt_ids(const std::string& text) const {
  return attnres::prompt_ids(text, parts_->known_tokenizer());
}

std::vector<int32_t> TextEngine::encode(const std::string& text) const {
  return parts_->known_tokenizer().encode(text);
}

std::vector<int32_t> TextEngine::encode_framed(const std::string& text) const {
  return attnres::encode_framed(text, parts_->known_tokenizer());
}

std::string TextEngine::decode(const std::vector<int32_t>& ids) const {
  return parts_->known_tokenizer().decode(ids);
}

std::string TextEngine::token_text(int32_t id) const {
  return parts_->known_tokenizer().token_text(id);
}

std::shared_ptr<const TokenConstraint> TextEngine::constraint(const AnswerGrammar& answer) const {
  parts_->known_tokenizer();
  return parts_->grammars->prepare(answer);
}

TextRequest TextEngine::chat_request(const std::vector<TextMessage>& messages) const {
  Conversation conversation;
  for (const TextMessage& message : messages) {
    conversation.messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return parts_->asked(conversation);
}

TextRequest TextEngine::chat_request(const std::string& conversation) const {
  return parts_->asked(parse_conversation(conversation));
}

}  // namespace attnres
