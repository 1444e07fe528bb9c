#include "attnres/text/hugging_face/post_processor.h"

namespace attnres {
namespace {

void add_token(const JsonPart& tokens, const std::string& name, int64_t vocab_size,
               std::vector<int32_t>& ids) {
  const JsonPart entry = tokens.at(name.c_str());
  for (const JsonPart& id : entry.at("ids").list()) {
    const int64_t number = id.count();
    if (number >= vocab_size) id.refuse(fmt::format("a token, 0 to {}", vocab_size - 1));
    ids.push_back(static_cast<int32_t>(number));
  }
}

TextFrame read_template(const JsonPart& part, int64_t vocab_size) {
  TextFrame frame;
  int texts = 0;
  const JsonPart single = part.at("single");
  for (const JsonPart& piece : single.list()) {
    if (!piece.at("Sequence").is_null()) {
      ++texts;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id").text();
    if (texts == 0) frame.before_text += name;
    add_token(part.at("special_tokens"), name, vocab_size, texts == 0 ? frame.before : frame.after);
  }
  if (texts != 1) single.refuse("one text among its tokens");
  return frame;
}

Json special(const FrameToken& token) {
  return {{"SpecialToken", {{"id", token.name}, {"type_id", 0}}}};
}

}  // namespace

TextFrame read_post_processor(const JsonPart& part, int64_t vocab_size) {
  if (part.is_null()) return {};
  const std::string type = part.type();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(part, vocab_size);
  if (type != "Sequence") part.at("type").refuse("TemplateProcessing, ByteLevel or Sequence");
  TextFrame first;
  for (const JsonPart& step : part.at("processors").list()) {
    TextFrame frame = read_post_processor(step, vocab_size);
    if (first.empty()) first = std::move(frame);
  }
  return first;
}

Json write_post_processor(const std::vector<FrameToken>& before,
                          const std::vector<FrameToken>& after) {
  Json single = Json::array(), tokens = Json::object();
  const auto add = [&](const std::vector<FrameToken>& specials) {
    for (const FrameToken& token : specials) {
      single.push_back(special(token));
      tokens[token.name] = {{"id", token.name},
                            {"ids", Json::array({token.id})},
                            {"tokens", Json::array({token.name})}};
    }
  };
  add(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(after);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

}  // namespace attnres
