// Numbers that are not finite: in a model's files, and in what a model computes.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "attnres/formats/safetensors.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/file.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"

namespace attnres::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class NotFinite : public ::testing::Test {
 protected:
  // A Llama directory in which every number of the last tensor, the head, is this.
  std::string model_with(double value) const {
    const fs::path folder = fresh_folder("model");
    const ModelConfig config = read_model_config({{"layers", 1}, {"width", 32}, {"heads", 2}});
    save_model(Transformer(config, 256, /*seed=*/1), folder, /*context=*/16, 0);
    ByteTokenizer().save(folder);
    const fs::path weights = folder / "model.safetensors";
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    {
      const SafetensorsFile file(weights);
      for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
    }
    for (auto& [name, tensor] : tensors) {
      if (name == "lm_head.weight") tensor.fill_(value);
    }
    write_safetensors(weights, tensors);
    return folder.string();
  }

  void expect_refused(const std::string& arguments, const std::string& why) const {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments << result.out;
    EXPECT_THAT(result.err, HasSubstr(why)) << arguments;
    EXPECT_FALSE(fs::exists(out_)) << arguments;
  }

  const fs::path out_ = fresh_folder("out") / "x";
  const std::string text_ = [] {
    const fs::path file = fresh_folder("text") / "text";
    write_file(file, std::string(2000, 'a') + std::string(2000, 'b'));
    return file.string();
  }();
};

TEST_F(NotFinite, WeightsAreRefusedByEveryCommand) {
  const std::string model = model_with(NAN), out = out_.string();
  for (const std::string& arguments :
       {fmt::format("eval --model {} --data {}", model, text_),
        fmt::format("score --model {} --ids 1,2,3", model),
        fmt::format("generate --model {} --prompt a", model),
        fmt::format("retrofit --full --model {} --out {}", model, out),
        fmt::format("import --from {} --out {}", model, out),
        fmt::format("export --model {} --out {}", model, out),
        fmt::format("train --from {} --data {} --out {}", model, text_, out)}) {
    expect_refused(arguments, "lm_head.weight holds numbers that are not finite");
  }
}

// Finite weights, whose products are not.
TEST_F(NotFinite, ResultsAreErrors) {
  const std::string model = model_with(3e38), out = out_.string();
  expect_refused(fmt::format("eval --model {} --data {}", model, text_), "loss on this text");
  expect_refused(fmt::format("score --model {} --ids 1,2,3", model), "not finite");
  expect_refused(fmt::format("retrofit --full --model {} --out {}", model, out), "not finite");
  const std::string sound = model_with(0.1);
  EXPECT_EQ(run_program(fmt::format("eval --model {} --data {}", sound, text_)).exit_code, 0);
  EXPECT_EQ(run_program(fmt::format("score --model {} --ids 1,2,3", sound)).exit_code, 0);
}

}  // namespace
}  // namespace attnres::testing
