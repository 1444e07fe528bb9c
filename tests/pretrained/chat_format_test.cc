// Where the templates of conversations lie in the files of models.
#include "attnres/pretrained/chat_format.h"

#include <gtest/gtest.h>

#include "attnres/formats/gguf.h"
#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::chat_format_test {
namespace {

TEST(ModelChatFormat, IsThatOfTheTemplateWhereverItLies) {
  const std::filesystem::path folder = fresh_folder("model");
  EXPECT_EQ(model_chat_format(folder), ChatFormat::plain);
  const std::filesystem::path config = folder / "tokenizer_config.json";
  write_text(config, R"({"model_max_length": 5})");
  EXPECT_EQ(model_chat_format(folder), ChatFormat::plain);
  write_text(config, R"({"chat_template": "{{'<|im_start|>'}}"})");
  EXPECT_EQ(model_chat_format(folder), ChatFormat::chatml);
  write_text(config, R"({"chat_template": [{"name": "tools", "template": "<|im_start|>"},
                                           {"name": "default", "template": "[INST]"}]})");
  EXPECT_EQ(model_chat_format(folder), ChatFormat::llama2);
  write_text(config, R"({"chat_template": "unheard of"})");
  EXPECT_EQ(model_chat_format(folder), std::nullopt);
  write_text(folder / "chat_template.jinja", "{{ '<|start_header_id|>' }}");  // goes first
  EXPECT_EQ(model_chat_format(folder), ChatFormat::llama3);
  write_text(folder / "chat_template.jinja", "");
  write_text(config, "{");
  EXPECT_EQ(model_chat_format(folder), ChatFormat::plain);
  std::filesystem::remove(folder / "chat_template.jinja");
  EXPECT_THROW(model_chat_format(folder), Error);

  const std::filesystem::path file = folder / "model.gguf";
  write_gguf(file, {{"general.architecture", std::string("llama")}}, {});
  EXPECT_EQ(model_chat_format(file), ChatFormat::plain);
  write_gguf(file, {{"tokenizer.chat_template", std::string("{{'<|im_middle|>'}}")}}, {});
  EXPECT_EQ(model_chat_format(file), ChatFormat::kimi);
}

}  // namespace
}  // namespace attnres::chat_format_test
