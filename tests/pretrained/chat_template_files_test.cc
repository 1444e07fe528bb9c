// Where the templates of conversations lie in the files of models.
#include "attnres/pretrained/chat_template_files.h"

#include <gtest/gtest.h>

#include "attnres/formats/gguf.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::chat_template_files_test {
namespace {

std::string rendered(const ChatTemplate& chat) {
  std::string text;
  for (const ChatPart& part : chat.parts({{"user", "Hi"}})) text += part.text;
  return text;
}

TEST(ChatTemplateFiles, IsFoundWhereverItLies) {
  const std::filesystem::path folder = fresh_folder("model");
  EXPECT_TRUE(read_chat_template(folder).plain());
  const std::filesystem::path config = folder / "tokenizer_config.json";
  write_text(config, R"({"model_max_length": 5})");
  EXPECT_TRUE(read_chat_template(folder).plain());
  write_text(config, R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
                         "chat_template": "{{ bos_token + messages[0].content + eos_token }}"})");
  EXPECT_EQ(rendered(read_chat_template(folder)), "<s>Hi</s>");
  write_text(config, R"({"chat_template": [{"name": "tools", "template": "tools"},
                                           {"name": "default", "template": "default"}]})");
  EXPECT_EQ(rendered(read_chat_template(folder)), "default");
  write_text(folder / "chat_template.jinja", "of its own");  // goes first
  EXPECT_EQ(rendered(read_chat_template(folder)), "of its own");
  write_text(config, "{");
  EXPECT_THROW(read_chat_template(folder), Error);

  const std::filesystem::path file = folder / "model.gguf";
  write_gguf(file, {{"general.architecture", std::string("llama")}}, {});
  EXPECT_TRUE(read_chat_template(GgufFile(file)).plain());
  write_gguf(file,
             {{"tokenizer.chat_template", std::string("{{ bos_token }}, {{ eos_token }}")},
              {"tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>"}},
              {"tokenizer.ggml.bos_token_id", uint32_t{1}},
              {"tokenizer.ggml.eos_token_id", uint32_t{7}}},  // there is none
             {});
  EXPECT_EQ(rendered(read_chat_template(GgufFile(file))), "<s>, ");
}

}  // namespace
}  // namespace attnres::chat_template_files_test
