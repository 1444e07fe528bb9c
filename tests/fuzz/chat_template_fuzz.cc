// Chat templates and what says them, conversations that they render, and answers in their forms.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/chat/conversation.h"
#include "attnres/chat/reply_reader.h"
#include "attnres/pretrained/chat_template_files.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "attnres/text/utf8.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::chat_template_fuzz {
namespace {

using namespace testing;

void read_answer(const ReplyFormat& format, const std::vector<ChatPart>& prompt, const Json& tools,
                 std::string_view answer) {
  const ByteTokenizer tokenizer;
  ReplyReader reader(plan_reply(format, prompt, tools), tokenizer);
  require_utf8(answer, "the answer");  // as a StreamDecoder makes it
  const size_t half = std::min(answer.find('\n'), answer.size());
  reader.add(answer.substr(0, half));
  reader.add_control("<|im_end|>");
  reader.add(answer.substr(half));
  reader.finish();
}

void run(std::string_view input) {
  const auto parts = parts_of(input, 4);
  put_file("tokenizer_config.json", parts[0]);
  put_file("chat_template.jinja", parts[1]);
  const ChatTemplate chat_template = read_chat_template(fuzz_folder());
  attempt([&] { chat_template.ends(ByteTokenizer()); });
  const Conversation conversation = parse_conversation(parts[2]);
  const std::vector<ChatPart> prompt = chat_template.rendered(conversation);
  chat_prompt_ids(prompt, chat_template, ByteTokenizer());
  read_answer(chat_template.reply_format(), prompt, conversation.tools, parts[3]);
}

std::vector<std::string> seeds() {
  const std::string config =
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null,
          "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}]})";
  const std::string question = R"({"messages": [{"role": "user", "content": "Who?"}]})";
  const std::string answer =
      "<think>\nhm\n</think>\n\nIt is.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
      "</tool_call>";
  std::vector<std::string> seeds = {joined_inputs({config, "", question, answer})};
  const Json chats = parse_json(repository_file("tests/fixtures/conversation_cases.json"), "seeds");
  for (const auto& [name, lines] : chats["templates"].items()) {
    std::string jinja;
    for (const Json& line : lines) jinja += line.get<std::string>() + "\n";
    for (const auto& [title, conversation] : chats["conversations"].items()) {
      seeds.push_back(joined_inputs({config, jinja, conversation.dump(), answer}));
    }
  }
  for (const char* cases :
       {"tests/fixtures/jinja_cases.json", "tests/fixtures/jinja_constructs.json"}) {
    const Json constructs = parse_json(repository_file(cases), "seeds");
    for (const Json& pair : constructs["renders"]) {
      seeds.push_back(joined_inputs({"", pair[0].get<std::string>(), question, ""}));
    }
  }
  return seeds;
}

const ListedFuzzTarget kListed({"chat_template", run, seeds});

}  // namespace
}  // namespace attnres::chat_template_fuzz
