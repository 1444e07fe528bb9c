// Models as they are published: inside one of images and text, with layers for further tokens, with
// files that a loader has to choose among. The text models are the fixtures that other programs
// made, so that the log-probabilities of these are to come out.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "attnres/formats/gguf_reader.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/find_model.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "tests/formats/gguf_models.h"
#include "tests/formats/split_gguf.h"
#include "tests/pretrained/fixture_models.h"

namespace attnres::testing::published_directory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Rename = std::function<std::string(const std::string&)>;

NamedTensors tensors_of(const fs::path& folder) {
  const TensorFiles files(folder);
  NamedTensors tensors;
  for (const std::string& name : files.names()) tensors.emplace_back(name, files.read(name));
  return tensors;
}

// The fixture with these tensors in one file.
fs::path with_tensors(const std::string& name, const NamedTensors& tensors) {
  const fs::path folder = copy_of(name);
  for (const auto& entry : fs::directory_iterator(fixture(name))) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with("model")) fs::remove(folder / file);
  }
  write_safetensors(folder / "model.safetensors", tensors);
  return folder;
}

std::string refusal(const fs::path& folder) {
  return message_of<Error>([&] { load_model(folder); });
}

// How a model of images and text calls its text model's tensors.
std::string nested(const std::string& name) {
  return "language_model." + name;
}
std::string inside(const std::string& name, const std::string& inner) {
  return name.starts_with("model.") ? "model." + inner + name.substr(5) : name;
}

struct Wrapper {
  std::string type, text, text_type;  // text: the fixture
  Rename name;
  std::vector<std::string> of_images;
};
std::ostream& operator<<(std::ostream& out, const Wrapper& of) {
  return out << of.type << of.text_type;
}

std::vector<Wrapper> wrappers() {
  const Rename language = [](const std::string& name) { return inside(name, "language_model"); };
  const Rename text_model = [](const std::string& name) { return inside(name, "text_model"); };
  const Rename same = [](const std::string& name) { return name; };
  const std::vector<std::string> older = {"vision_tower.patch.weight", "multi_modal_projector.a"},
                                 newer = {"model.vision_tower.patch.weight",
                                          "model.multi_modal_projector.a", "model.image_newline"};
  return {{"gemma3", "gemma3_tiny", "gemma3_text", nested, older},
          {"gemma3", "gemma3_tiny", "", language, newer},
          {"mistral3", "mistral_tiny", "mistral", nested, older},
          {"mistral3", "mistral_tiny", "", language, newer},
          {"llava", "mistral_tiny", "mistral", nested, older},
          {"llava_next", "llama3_tiny", "llama", nested, {"image_newline", "vision_tower.a"}},
          {"llava_onevision", "qwen2_tiny", "qwen2", language, newer},
          {"internvl", "qwen3_tiny", "qwen3", nested, older},
          {"idefics3",
           "llama3_tiny",
           "llama",
           text_model,
           {"model.vision_model.a", "model.connector.b"}},
          {"smolvlm", "llama3_tiny", "", text_model, {"model.vision_model.a", "model.connector.b"}},
          {"qwen2_vl", "qwen2_tiny", "qwen2_vl_text", language, {"model.visual.a"}},
          {"qwen2_5_vl", "qwen2_tiny", "", same, {"visual.a"}},
          {"qwen3_vl", "qwen3_tiny", "qwen3_vl_text", language, {"model.visual.a"}},
          {"kimi_vl", "deepseek_v3_tiny", "deepseek_v3", nested, older},
          {"kimi_k25", "deepseek_v3_tiny", "kimi_k2", nested, {"vision_tower.a", "mm_projector.b"}},
          {"kimi_k3", "kimi_k3_tiny", "kimi_linear", same, {"vision_tower.a", "mm_projector.b"}}};
}

class TextModel : public ::testing::TestWithParam<Wrapper> {
 protected:
  // The fixture inside a model of images and text; `others` of its tensors are of images.
  static fs::path wrapped(const Wrapper& wrapper, const std::vector<std::string>& others) {
    NamedTensors tensors;
    for (auto& [name, tensor] : tensors_of(fixture(wrapper.text))) {
      tensors.emplace_back(wrapper.name(name), tensor);
    }
    for (const std::string& name : others) tensors.emplace_back(name, at::ones({2}));
    const fs::path folder = with_tensors(wrapper.text, tensors);
    edit(folder / "config.json", [&](Json& json) {
      Json text = json.contains("text_config") ? json["text_config"] : json;
      text.erase("model_type");
      if (!wrapper.text_type.empty()) text["model_type"] = wrapper.text_type;
      text.erase("eos_token_id");
      json = {{"model_type", wrapper.type},
              {"text_config", text},
              {"vision_config", {{"hidden_size", 8}, {"model_type", "vision"}}},
              {"eos_token_id", 7}};
    });
    return folder;
  }
};
INSTANTIATE_TEST_SUITE_P(Wrappers, TextModel, ::testing::ValuesIn(wrappers()),
                         [](const auto& info) {
                           return fmt::format("{}{}", info.param.type, info.index);
                         });

TEST_P(TextModel, IsReadOutOfAModelOfImages) {
  const Wrapper& wrapper = GetParam();
  const fs::path folder = wrapped(wrapper, wrapper.of_images);
  const ModelDirectory directory(folder);
  EXPECT_LT(error_against_fixture(*directory.load(), wrapper.text), 5e-4);
  EXPECT_EQ(directory.stored().document_ids.end, 7) << "of the configuration around it";
  EXPECT_THAT(directory.notes(),
              ElementsAre(HasSubstr(
                  "model.safetensors: " + counted(std::ssize(wrapper.of_images), "tensor") +
                  " of images or sound")));
  EXPECT_THAT(ModelDirectory(wrapped(wrapper, {})).notes(), IsEmpty());
  EXPECT_THAT(refusal(wrapped(wrapper, {"model.layers.0.self_attn.unknown"})),
              HasSubstr("self_attn.unknown is no tensor of this model"));
}

TEST_P(TextModel, IsSavedAsOneOfTextAlone) {
  const fs::path folder = wrapped(GetParam(), GetParam().of_images), out = fresh_folder("out");
  const ModelDirectory directory(folder);
  const auto model = directory.load();
  save_model_folder_like(out / "text", *model, directory, /*context=*/64);
  EXPECT_THAT(ModelDirectory(out / "text").notes(), IsEmpty());
  EXPECT_LT(error_against_fixture(*load_model(out / "text"), GetParam().text), 5e-4);
}

TEST(TextModels, OfOtherKindsAreRefused) {
  const fs::path folder = copy_of("llama3_tiny");
  const Json config = read_json(folder / "config.json");
  const auto refused = [&](const Json& around) {
    write_file(folder / "config.json", around.dump());
    return refusal(folder);
  };
  EXPECT_THAT(refused({{"model_type", "mllama"}, {"text_config", config}}),
              AllOf(HasSubstr("model_type mllama is unknown"), HasSubstr("text models of gemma3")));
  EXPECT_THAT(refused({{"model_type", "llama"}, {"text_config", config}}),
              HasSubstr("text_config: attnres does not read it of llama"));
  EXPECT_THAT(refused({{"model_type", "llava"}}), HasSubstr("the key text_config is missing"));
  EXPECT_THAT(refused({{"model_type", "llava"}, {"text_config", 3}}), HasSubstr("text_config"));
  Json phi = config;
  phi["model_type"] = "phi3";
  EXPECT_THAT(refused({{"model_type", "llava"}, {"text_config", phi}}),
              HasSubstr("text_config: model_type phi3 is unknown"));
}

// A configuration of Qwen2-VL is flat in older files, with a section of positions for each axis.
TEST(TextModels, HaveOnePositionForAllAxes) {
  const fs::path folder = copy_of("qwen2_tiny");
  edit(folder / "config.json", [](Json& json) {
    json["model_type"] = "qwen2_vl";
    json["rope_theta"] = json["rope_parameters"]["rope_theta"];
    json["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}};
    json.erase("rope_parameters");
    json["vision_config"] = {{"depth", 2}};
  });
  EXPECT_LT(error_against_fixture(*load_model(folder), "qwen2_tiny"), 1e-4);
}

// Of which files give little: what transformers takes where they are silent.
TEST(TextModels, OfGemmaHaveTheSizesThatFilesLeaveOut) {
  const fs::path folder = copy_of("gemma3_tiny");
  const auto stored = [&](const char* without) {
    const Json config = read_json(fixture("gemma3_tiny") / "config.json");
    Json text = config;
    text.erase(without);
    return from_config_json({{"model_type", "gemma3"}, {"text_config", text}}, "config.json");
  };
  EXPECT_EQ(stored("vocab_size").vocab_size, 262208);
  EXPECT_EQ(stored("max_position_embeddings").context, 131072);
  EXPECT_TRUE(stored("tie_word_embeddings").model.tie_embeddings);
}

NamedTensors with_further_layer(const std::string& name, int layer) {
  NamedTensors tensors = tensors_of(fixture(name));
  for (const char* tensor : {"eh_proj.weight", "enorm.weight", "mlp.experts.0.gate_proj.weight",
                             "shared_head.head.weight"}) {
    tensors.emplace_back(fmt::format("model.layers.{}.{}", layer, tensor), at::ones({2}));
  }
  return tensors;
}

TEST(LayersForFurtherTokens, AreLeftOutWhereTheConfigurationHasThem) {
  const std::string name = "deepseek_v3_tiny";
  const fs::path folder = with_tensors(name, with_further_layer(name, 4));
  const auto with_layers = [&](const Json& count) {
    edit(folder / "config.json", [&](Json& json) { json["num_nextn_predict_layers"] = count; });
  };
  with_layers(1);
  const ModelDirectory directory(folder);
  EXPECT_THAT(directory.notes(),
              ElementsAre(HasSubstr("4 tensors of layers that predict further tokens are not")));
  EXPECT_LT(error_against_fixture(*directory.load(), name), 1e-4);
  for (const Json& none : {Json(0), Json(nullptr)}) {
    with_layers(none);
    EXPECT_THAT(refusal(folder), AllOf(HasSubstr("model.layers.4."), HasSubstr("is no tensor")));
  }
  for (const Json& wrong : {Json(-1), Json(INT64_MAX), Json("1")}) {
    with_layers(wrong);
    EXPECT_THAT(refusal(folder), HasSubstr("num_nextn_predict_layers"));
  }
  const fs::path behind = with_tensors(name, with_further_layer(name, 5));
  EXPECT_THAT(refusal(behind), AllOf(HasSubstr("model.layers.5."), HasSubstr("is no tensor")));
}

TEST(LayersForFurtherTokens, MayHaveANameOfTheirOwn) {
  NamedTensors tensors = tensors_of(fixture("qwen3_tiny"));
  tensors.emplace_back("mtp.fc.weight", at::ones({2}));
  tensors.emplace_back("model.mtp_layers.0.norm.weight", at::ones({2}));
  const fs::path folder = with_tensors("qwen3_tiny", tensors);
  EXPECT_THAT(ModelDirectory(folder).notes(), ElementsAre(HasSubstr("2 tensors of layers")));
  EXPECT_LT(error_against_fixture(*load_model(folder), "qwen3_tiny"), 1e-4);
}

// Its configuration, as far as it says how the text model computes.
Json kimi_k3_config() {
  Json full = Json::array(), delta = Json::array();
  for (int layer = 1; layer <= 93; ++layer) {
    (layer % 4 == 0 || layer == 93 ? full : delta).push_back(layer);
  }
  const Json text = {{"model_type", "kimi_linear"},
                     {"vocab_size", 163840},
                     {"hidden_size", 7168},
                     {"intermediate_size", 33792},
                     {"num_hidden_layers", 93},
                     {"num_attention_heads", 96},
                     {"num_key_value_heads", 96},
                     {"rms_norm_eps", 1e-5},
                     {"max_position_embeddings", 1048576},
                     {"tie_word_embeddings", false},
                     {"eos_token_id", 163586},
                     {"q_lora_rank", 1536},
                     {"kv_lora_rank", 512},
                     {"qk_nope_head_dim", 128},
                     {"qk_rope_head_dim", 64},
                     {"v_head_dim", 128},
                     {"mla_use_nope", true},
                     {"mla_use_output_gate", true},
                     {"linear_attn_config",
                      {{"num_heads", 96},
                       {"head_dim", 128},
                       {"short_conv_kernel_size", 4},
                       {"gate_lower_bound", -5.0},
                       {"use_full_rank_gate", true},
                       {"full_attn_layers", full},
                       {"kda_layers", delta}}},
                     {"num_experts", 896},
                     {"num_experts_per_token", 16},
                     {"num_shared_experts", 2},
                     {"moe_intermediate_size", 3072},
                     {"routed_expert_hidden_size", 3584},
                     {"latent_moe_use_norm", true},
                     {"moe_renormalize", true},
                     {"moe_router_activation_func", "sigmoid"},
                     {"num_expert_group", 1},
                     {"topk_group", 1},
                     {"routed_scaling_factor", 1.0},
                     {"first_k_dense_replace", 1},
                     {"moe_layer_freq", 1},
                     {"hidden_act", "situ"},
                     {"activation_situ_beta", 4.0},
                     {"activation_situ_linear_beta", 25.0},
                     {"attn_res_block_size", 12}};
  return {{"architectures", {"KimiK3ForConditionalGeneration"}},
          {"model_type", "kimi_k3"},
          {"text_config", text},
          {"vision_config", {{"vt_num_hidden_layers", 27}, {"vt_hidden_size", 1024}}}};
}

TEST(KimiK3AsPublished, IsReadWithItsPackedNumbers) {
  Json config = kimi_k3_config();
  const StoredConfig stored = from_config_json(config, "config.json");
  EXPECT_EQ(stored.layout, FileLayout::kimi_k3);
  EXPECT_EQ(stored.model.layers, 93);
  EXPECT_EQ(stored.model.depth_mixing.to_json().at("block_size"), 24);
  EXPECT_EQ(stored.context, 1048576);
  EXPECT_EQ(stored.document_ids.end, 163586);
  config["text_config"]["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                                  {"format", "mxfp4-pack-quantized"}};
  EXPECT_EQ(from_config_json(config, "config.json").model.layers, 93);
  config["text_config"]["quantization_config"]["format"] = "nvfp4-pack-quantized";
  EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
              HasSubstr("config.json: text_config: quantization_config: weights are quantized "
                        "(compressed-tensors nvfp4-pack-quantized)"));
}

// Published with 128 numbers for 96 heads: as many as a head has channels.
TEST(KimiK3AsPublished, HasLongerDecaysThanHeads) {
  const auto lengthened = [](const std::string& name, const std::vector<int64_t>& shape) {
    NamedTensors tensors = tensors_of(fixture(name));
    for (auto& [tensor, numbers] : tensors) {
      if (!tensor.ends_with(".A_log")) continue;
      at::Tensor longer = at::full({16}, 5.0);
      longer.narrow(0, 0, 2).copy_(numbers.flatten());
      numbers = longer.view(shape).clone();
    }
    tensors.emplace_back("vision_tower.a", at::ones({2}));
    return with_tensors(name, tensors);
  };
  for (const char* name : {"kimi_k3_tiny", "kimi_linear_tiny"}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{16}, {1, 1, 16, 1}}) {
      const ModelDirectory directory(lengthened(name, shape));
      EXPECT_LT(error_against_fixture(*directory.load(), name), 5e-4);
      EXPECT_THAT(directory.notes(),
                  ElementsAre(AllOf(HasSubstr("1 tensor of images or sound is not read"),
                                    HasSubstr("of A_log's 16 numbers the first 2"))));
    }
    EXPECT_THAT(refusal(lengthened(name, {4, 4})), HasSubstr("A_log has the shape [4, 4]"));
  }
}

// "config.json: quantization_config: weights are quantized (METHOD), ..., or unpack them first".
TEST(QuantizedModels, AreRefusedByNameWithAWayOut) {
  const fs::path folder = copy_of("llama3_tiny");
  const std::string config = read_file(folder / "config.json");
  const auto refused = [&](const char* key, const Json& value) {
    write_file(folder / "config.json", config);
    edit(folder / "config.json", [&](Json& json) { json[key] = value; });
    std::string message = refusal(folder);
    EXPECT_THAT(message, AllOf(HasSubstr(key), HasSubstr("the model that they were made from"),
                               HasSubstr("or a GGUF file")));
    return message;
  };
  const Json blocks = {64, 64};
  for (const auto& [value, said] : std::vector<std::pair<Json, std::string>>{
           {{{"quant_method", "gptq"}, {"bits", 4}}, "(gptq, 4 bits)"},
           {{{"quant_method", "awq"}, {"w_bit", 4}}, "(awq, 4 bits)"},
           {{{"quant_method", "hqq"}, {"nbits", 3}}, "(hqq, 3 bits)"},
           {{{"quant_method", "eetq"}}, "(eetq)"},
           {{{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}, "(bitsandbytes, 8 bits)"},
           {{{"load_in_4bit", true}}, "(bitsandbytes, 4 bits)"},
           {{{"quant_method", "bitsandbytes"}}, "model.dequantize()"},
           {{{"quant_method", "fp8"}, {"fmt", "e4m3"}}, "(fp8)"},
           {{{"quant_method", "fp8"}, {"weight_block_size", blocks}}, "block of [64,64]"},
           {{{"quant_method", "fp8"}}, "FineGrainedFP8Config(dequantize=True)"},
           {{{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}},
            "(compressed-tensors nvfp4-pack-quantized)"},
           {{{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}},
            "run_compressed=False"},
           {{{"quant_algo", "NVFP4"}}, "(NVFP4)"},
           {{{"bits", 4}}, "an unnamed method, 4 bits"},
           {"none", "(\"none\")"}}) {
    EXPECT_THAT(refused("quantization_config", value), HasSubstr(said));
  }
  EXPECT_THAT(refused("compression_config", {{"format", "pack-quantized"}}),
              HasSubstr("(compressed-tensors pack-quantized)"));
  EXPECT_THAT(refused("quantization", {{"group_size", 64}, {"bits", 4}}),
              AllOf(HasSubstr("(mlx, 4 bits)"), HasSubstr("mlx_lm.convert --dequantize")));
}

// Inside a model of images too.
TEST(QuantizedModels, AreRefusedWhereverItIsSaid) {
  const Json text = read_json(fixture("mistral_tiny") / "config.json");
  const Json gptq = {{"quant_method", "gptq"}};
  Json quantized = text;
  quantized["quantization_config"] = gptq;
  for (const Json& config :
       {Json{{"model_type", "llava"}, {"text_config", quantized}},
        Json{{"model_type", "llava"}, {"text_config", text}, {"quantization_config", gptq}}}) {
    EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
                HasSubstr("weights are quantized (gptq)"));
  }
}

class FolderOfGguf : public ::testing::Test {
 protected:
  const fs::path whole_ = saved_gguf(perturbed_model(gguf_llama())),
                 folder_ = fresh_folder("folder");
};

TEST_F(FolderOfGguf, IsItsModel) {
  fs::copy(whole_, folder_ / "model-Q8_0.gguf");
  EXPECT_EQ(find_model(folder_), folder_ / "model-Q8_0.gguf");
  write_text(folder_ / "config.json", R"({"model_type": "of the model that it was made from"})");
  write_text(folder_ / "mmproj-model-f16.gguf", "images");
  EXPECT_EQ(find_model(folder_), folder_ / "model-Q8_0.gguf");
  fs::copy(whole_, folder_ / "model-Q4_0.gguf");
  EXPECT_THAT(message_of<Error>([&] { find_model(folder_); }),
              AllOf(HasSubstr("holds 2 GGUF models: model-Q4_0.gguf, model-Q8_0.gguf"),
                    HasSubstr("name one of these")));
  write_text(folder_ / "model.safetensors", "");
  EXPECT_EQ(find_model(folder_), folder_) << "a model directory first of all";
}

TEST_F(FolderOfGguf, MayHaveItInParts) {
  const std::vector<fs::path> parts = split_gguf(whole_, folder_ / "model", 7);
  EXPECT_EQ(find_model(folder_), parts[0]);
  EXPECT_EQ(difference(*load_model(find_model(folder_)), *load_model(whole_)), 0);
  fs::remove(parts[1]);
  EXPECT_THAT(message_of<Error>([&] { load_model(find_model(folder_)); }),
              HasSubstr("one is missing in"));
}

// A run's own, exported beside its checkpoints, is not in the place of these.
TEST_F(FolderOfGguf, IsNoRun) {
  fs::copy(whole_, folder_ / "model.gguf");
  write_text(folder_ / "checkpoints/best/config.json", "{}");
  EXPECT_EQ(find_model(folder_), folder_ / "checkpoints/best");
}

TEST(FilesOfOthers, SayWhatTheyAre) {
  const fs::path folder = fresh_folder("files");
  const auto refused = [&](const char* name, const std::string& bytes) {
    write_text(folder / name, bytes);
    const std::string alone = message_of<Error>([&] { find_model(folder / name); });
    const std::string inside = message_of<Error>([&] { find_model(folder); });
    fs::remove(folder / name);
    return std::pair(alone, inside);
  };
  for (const auto& [name, said] : std::vector<std::pair<const char*, const char*>>{
           {"ggml-model-q4_0.bin", "from before GGUF"},
           {"pytorch_model.bin", "pickles, which attnres does not read"},
           {"consolidated.00.pth", "a file for each of its GPUs"},
           {"consolidated.safetensors", "their author's own names"},
           {"model.onnx", "operations (ONNX)"}}) {
    const auto [alone, inside] = refused(name, "weights");
    EXPECT_THAT(alone, AllOf(HasSubstr("is neither a folder nor a GGUF file"), HasSubstr(said)));
    EXPECT_THAT(inside, AllOf(HasSubstr(std::string("it holds ") + name), HasSubstr(said)));
  }
  EXPECT_THAT(refused("weights", std::string("tjgg\x03\0\0\0", 8)).first,
              HasSubstr("from before GGUF"));
  EXPECT_THAT(refused("weights.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10)).first,
              HasSubstr("name its folder, with the model's config.json in it"));
  fs::create_directories(folder / "onnx");
  EXPECT_THAT(message_of<Error>([&] { find_model(folder); }), HasSubstr("ONNX"));
}

TEST(ATokenizerThatIsMissing, IsMadeOfWhatIsThere) {
  const fs::path folder = copy_of("llama3_tiny");
  const auto message = [&] {
    return message_of<UnreadTokenizer>([&] { ModelDirectory(folder).tokenizer(); });
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("put the files of the model's tokenizer beside it"),
                               HasSubstr("token ids without one")));
  write_text(folder / "vocab.json", "{}");
  EXPECT_THAT(message(), AllOf(HasSubstr("makes the first of vocab.json"),
                               HasSubstr("save_pretrained(DIR)"), Not(HasSubstr("put the"))));
}

}  // namespace
}  // namespace attnres::testing::published_directory_test
