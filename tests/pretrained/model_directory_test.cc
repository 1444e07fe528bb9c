#include "attnres/pretrained/model_directory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "attnres/formats/safetensors.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/model/parameter_names.h"
#include "attnres/pretrained/find_model.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/text/bytes.h"
#include "tests/larger.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::model_directory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kLlama = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/llama_tiny";

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

Tensors read_tensors(const fs::path& folder) {
  const SafetensorsFile file(folder / "model.safetensors");
  Tensors tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
  return tensors;
}

void write_tensors(const fs::path& folder, const Tensors& tensors) {
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
}

at::Tensor& find(Tensors& tensors, const std::string& name) {
  for (auto& [candidate, tensor] : tensors) {
    if (candidate == name) return tensor;
  }
  fail("no tensor {}", name);
}

fs::path copy_of(const fs::path& model) {
  const fs::path folder = fresh_folder("copy");
  fs::copy(model, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  return folder;
}

fs::path saved(const Transformer& model, at::ScalarType dtype = at::kFloat) {
  const fs::path folder = fresh_folder("saved");
  save_model(model, folder, /*context=*/64, /*document_ids=*/0, dtype);
  return folder;
}

void edit_config(const fs::path& folder, const std::function<void(Json&)>& edit) {
  Json json = read_json(folder / "config.json");
  edit(json);
  write_file(folder / "config.json", json.dump());
}

// The largest difference from the log-probabilities that transformers computed in float64.
double error_against_transformers(const Transformer& model) {
  double error = 0;
  for (const Json& score : read_json(kLlama / "scores.json")) {
    const auto ours =
        score_sequence(LocalModel(model), score["ids"].get<std::vector<int32_t>>(), 64);
    const auto theirs = score["logprobs"].get<std::vector<double>>();
    EXPECT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      error = larger(error, std::abs(ours[i] - theirs[i]));
    }
  }
  return error;
}

TEST(LlamaDirectory, ScoresAsTransformersDoes) {
  EXPECT_LT(error_against_transformers(*load_model(kLlama)), 5e-5);
  EXPECT_EQ(ModelDirectory(kLlama).context(), 64);
}

TEST(LlamaDirectory, EveryTensorAndSettingMatters) {
  const fs::path folder = copy_of(kLlama);
  const Tensors tensors = read_tensors(folder);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensors changed = tensors;
    changed[i].second = changed[i].second.roll(1, 0);
    write_tensors(folder, changed);
    EXPECT_GT(error_against_transformers(*load_model(folder)), 1e-3) << tensors[i].first;
  }
  write_tensors(folder, tensors);
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"rms_norm_eps", 0.1}, {"rope_parameters", {{"rope_theta", 50.0}}}}) {
    edit_config(folder, [&key = key, &value = value](Json& json) { json[key] = value; });
    EXPECT_GT(error_against_transformers(*load_model(folder)), 1e-3) << key;
  }
}

TEST(LlamaDirectory, ReadsOlderConfigurations) {
  const fs::path folder = copy_of(kLlama);
  edit_config(folder, [](Json& json) {
    json["rope_theta"] = 500.0;
    json["rope_scaling"] = nullptr;
    for (const char* key : {"rope_parameters", "head_dim", "tie_word_embeddings", "mlp_bias"}) {
      json.erase(key);
    }
  });
  EXPECT_LT(error_against_transformers(*load_model(folder)), 5e-5);
}

TEST(LlamaDirectory, RefusesWhatItWouldComputeDifferently) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"rope_parameters", {{"rope_theta", 500.0}, {"rope_type", "longrope"}}},
           {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}},
           {"attention_bias", true},
           {"mlp_bias", true},
           {"hidden_act", "gelu"},
           {"quantization_config", {{"bits", 4}}}}) {
    const fs::path folder = copy_of(kLlama);
    edit_config(folder, [&key = key, &value = value](Json& json) { json[key] = value; });
    EXPECT_THAT(message_of<Error>([&] { load_model(folder); }),
                AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
}

class SavedModel : public ::testing::TestWithParam<std::tuple<Mixing, bool>> {
 protected:
  const Transformer model_ = small_model(
      std::get<0>(GetParam()).json, {.tied = std::get<1>(GetParam()), .precision = at::kFloat});
  const at::Tensor ids_ = random_ids(2, 9);

  at::Tensor logits(const Transformer& model) const {
    const at::NoGradGuard no_grad;
    return model.logits(model.hidden(ids_));
  }
};

TEST_P(SavedModel, ComesBackExactly) {
  const fs::path folder = saved(model_);
  const auto loaded = load_model(folder);
  EXPECT_TRUE(at::equal(logits(*loaded), logits(model_)));
  EXPECT_EQ(loaded->config().depth_mixing, model_.config().depth_mixing);
  EXPECT_EQ(ModelDirectory(folder).context(), 64);
}

TEST_P(SavedModel, ComesBackRoundedFromShorterTypes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto loaded = load_model(saved(model_, dtype));
    for (const Parameter& parameter : model_.parameters().all()) {
      const Parameter* other = loaded->parameters().find(parameter.site, parameter.role);
      EXPECT_TRUE(at::equal(other->tensor, parameter.tensor.to(dtype).to(at::kFloat)));
    }
  }
}

TEST_P(SavedModel, LoadsInAnotherType) {
  const auto loaded = load_model(saved(model_), at::kDouble);
  EXPECT_EQ(logits(*loaded).scalar_type(), at::kDouble);
  EXPECT_TRUE(close(logits(*loaded), logits(model_), 1e-4));
}

TEST_P(SavedModel, SaysWhatItIs) {
  const auto& [mixing, tied] = GetParam();
  const Json& depth_mixing = mixing.json;
  const fs::path folder = saved(model_);
  const Json json = read_json(folder / "config.json");
  const bool is_llama = depth_mixing == residual();
  EXPECT_EQ(json["model_type"], is_llama ? "llama" : "attnres");
  EXPECT_EQ(json["architectures"],
            Json::array({is_llama ? "LlamaForCausalLM" : "AttnResForCausalLM"}));
  EXPECT_EQ(json["tie_word_embeddings"], tied);
  EXPECT_EQ(json["vocab_size"], kSmallVocabulary);
  EXPECT_EQ(json["max_position_embeddings"], 64);
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(file.contains("lm_head.weight"), !tied);
  EXPECT_TRUE(file.verify_checksum());
  EXPECT_EQ(json.contains("auto_map"), !is_llama);
  EXPECT_EQ(fs::exists(folder / "modeling_attnres.py"), !is_llama);
  if (is_llama) return;
  EXPECT_EQ(read_file(folder / "modeling_attnres.py"),
            read_file(fs::path(ATTNRES_SOURCE_DIR) / "attnres/formats/modeling_attnres.py"));
  EXPECT_EQ(json["attnres"]["depth_mixing"]["type"], depth_mixing["type"]);
  if (mixing.name != "attn_res" && mixing.name != "block_attn_res") return;
  for (const char* name :
       {"model.layers.1.self_attention_res_proj.weight", "model.layers.2.mlp_res_proj.weight",
        "model.output_attn_res_proj.weight"}) {
    EXPECT_EQ(file.info(name).shape, (std::vector<int64_t>{1, 32}));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SavedModel,
                         ::testing::Combine(::testing::ValuesIn(every_mechanism()),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  (std::get<1>(info.param) ? "_tied" : "");
                         });

// Its mixer and its experts call a parameter alike.
TEST(SavedModelOfExperts, ComesBackUnderDeepDelta) {
  const Transformer model = kimi_model(/*k3=*/false, {{"type", "deep_delta"}}, at::kFloat);
  const auto loaded = load_model(saved(model));
  for (const Parameter& p : model.parameters().all()) {
    EXPECT_TRUE(at::equal(loaded->parameters().find(p.site, p.role)->tensor, p.tensor))
        << p.site << " " << p.role;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor ids = random_ids(2, 9);
  EXPECT_TRUE(at::equal(loaded->hidden(ids), model.hidden(ids)));
}

// Each spoils a good directory of a Block AttnRes model, and what the message has to say.
class DamagedDirectory : public ::testing::Test {
 protected:
  void expect_refused(const std::vector<std::string>& parts) const {
    const std::string message = message_of<Error>([&] { load_model(folder_); });
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
  }

  const fs::path folder_ = saved(small_model(block_attn_res(), {.precision = at::kFloat}));
  Tensors tensors_ = read_tensors(folder_);
};

TEST_F(DamagedDirectory, BrokenJson) {
  write_file(folder_ / "config.json", "{\n  \"model_type\": }");
  expect_refused({"config.json", "line 2, column"});
}

TEST_F(DamagedDirectory, UnknownModelType) {
  edit_config(folder_, [](Json& json) { json["model_type"] = "gpt2"; });
  expect_refused({"gpt2", "llama", "attnres"});
}

TEST_F(DamagedDirectory, MissingKeys) {
  for (const char* key : {"model_type", "vocab_size", "max_position_embeddings", "attnres"}) {
    const Json before = read_json(folder_ / "config.json");
    edit_config(folder_, [&](Json& json) { json.erase(key); });
    expect_refused({"config.json", key, "missing"});
    write_file(folder_ / "config.json", before.dump());
  }
}

TEST_F(DamagedDirectory, NumbersThatFitIntoNothing) {
  const std::string good = read_file(folder_ / "config.json");
  const std::string key = "\"vocab_size\":";
  for (const char* number : {"18446744073709551615", "99999999999999999999", "1e999"}) {
    std::string bad = good;
    const size_t at = bad.find(key) + key.size();
    ASSERT_LT(at, bad.size());
    bad.replace(at, bad.find_first_of(",\n}", at) - at, number);
    write_file(folder_ / "config.json", bad);
    expect_refused({"config.json", std::string(number) == "1e999" ? "too large" : "-2^63"});
  }
}

TEST_F(DamagedDirectory, ImpossibleModel) {
  edit_config(folder_, [](Json& json) { json["attnres"]["heads"] = 5; });
  expect_refused({"config.json", "heads"});
}

TEST_F(DamagedDirectory, UnknownModelKey) {
  edit_config(folder_, [](Json& json) { json["attnres"]["widht"] = 5; });
  expect_refused({"config.json", "attnres.widht", "attnres.width"});
}

TEST_F(DamagedDirectory, HugeModelIsRefusedBeforeItIsMade) {
  edit_config(folder_, [](Json& json) {
    json["attnres"]["width"] = 1 << 20;
    json["attnres"]["ffn_width"] = 1 << 20;
    json["attnres"]["layers"] = 1024;
  });
  expect_refused({"model.embed_tokens.weight", "[50, 32]", "[50, 1048576]"});
}

TEST_F(DamagedDirectory, MoreLayersThanAnyModelHas) {
  edit_config(folder_, [](Json& json) { json["attnres"]["layers"] = 1 << 20; });
  expect_refused({"attnres.layers", "from 1 to 1024", "1048576"});
}

TEST_F(DamagedDirectory, AnotherVocabulary) {
  edit_config(folder_, [](Json& json) { json["vocab_size"] = 51; });
  expect_refused({"model.embed_tokens.weight", "[50, 32]", "[51, 32]"});
}

TEST_F(DamagedDirectory, MissingTensor) {
  const std::string name = "model.layers.1.mlp_res_norm.weight";
  std::erase_if(tensors_, [&](const auto& tensor) { return tensor.first == name; });
  write_tensors(folder_, tensors_);
  expect_refused({name, "missing"});
}

TEST_F(DamagedDirectory, UnknownTensor) {
  tensors_.emplace_back("model.layers.9.mlp.up_proj.weight", at::zeros({2}));
  write_tensors(folder_, tensors_);
  expect_refused({"model.layers.9.mlp.up_proj.weight"});
}

TEST_F(DamagedDirectory, WrongShape) {
  at::Tensor& query = find(tensors_, "model.output_attn_res_proj.weight");
  query = query.squeeze(0).clone();
  write_tensors(folder_, tensors_);
  expect_refused({"model.output_attn_res_proj.weight", "[32]", "[1, 32]"});
}

TEST_F(DamagedDirectory, WrongType) {
  at::Tensor& gain = find(tensors_, "model.norm.weight");
  gain = gain.to(at::kInt);
  write_tensors(folder_, tensors_);
  expect_refused({"model.norm.weight", "int32"});
}

TEST_F(DamagedDirectory, FlippedBit) {
  std::string bytes = read_file(folder_ / "model.safetensors");
  bytes[bytes.size() - 10] ^= 1;
  write_file(folder_ / "model.safetensors", bytes);
  expect_refused({"model.safetensors"});
}

// Such as a run that diverged left behind, or another program.
TEST_F(DamagedDirectory, NotFinite) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  for (const double value : {NAN, INFINITY}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      Tensors tensors = tensors_;
      at::Tensor& tensor = find(tensors, name);
      tensor = tensor.clone();
      tensor[0][1] = value;
      for (auto& [other, values] : tensors) values = values.to(dtype);
      write_tensors(folder_, tensors);
      expect_refused({"model.safetensors", name, "not finite"});
    }
  }
  write_tensors(folder_, tensors_);
  EXPECT_NO_THROW(load_model(folder_));
}

TEST(SavingAModel, NeedsNumbersThatFit) {
  const Transformer model = small_model(block_attn_res(), {.precision = at::kFloat});
  const at::NoGradGuard no_grad;
  model.parameters().all()[0].tensor.mul_(0).add_(70000);
  EXPECT_NO_THROW(saved(model, at::kBFloat16));
  EXPECT_THAT(message_of<Error>([&] { saved(model, at::kHalf); }), HasSubstr("not finite"));
}

TEST_F(DamagedDirectory, NoWeights) {
  fs::remove(folder_ / "model.safetensors");
  expect_refused({"model.safetensors", "missing"});
  for (const auto& [file, said] : {std::pair("pytorch_model.bin", "pickles"),
                                   {"pytorch_model.bin.index.json", "save_pretrained(OUT)"},
                                   {"pytorch_model-00001-of-00002.bin", "pickles"},
                                   {"consolidated.00.pth", "pickles of the author"},
                                   {"model-00001-of-00002.safetensors", "index.json"},
                                   {"consolidated.safetensors", "author's own names"},
                                   {"weights.safetensors", "another name"},
                                   {"model.Q8_0.gguf", "name the file itself"},
                                   {"tf_model.h5", "as safetensors"}}) {
    write_file(folder_ / file, "weights");
    expect_refused({"model.safetensors is missing: it holds", file, said});
    fs::remove(folder_ / file);
  }
}

// Whose configuration does not say it.
TEST_F(DamagedDirectory, QuantizedTensors) {
  const std::string stem = "model.layers.0.self_attn.q_proj";
  const auto tensors = read_tensors(folder_);
  for (const char* end : {".weight_scale", ".weight_scale_inv", ".scales", ".SCB"}) {
    Tensors changed = tensors;
    changed.emplace_back(stem + end, at::ones({1}));
    write_tensors(folder_, changed);
    expect_refused({stem + ".weight is quantized", stem + end});
  }
  Tensors changed = tensors;
  for (auto& [name, tensor] : changed) {
    if (name == stem + ".weight") name = stem + ".qweight";
  }
  write_tensors(folder_, changed);
  expect_refused({stem + ".weight is missing", "quantized, as " + stem + ".qweight"});
}

// Whatever a file holds, a message shows its beginning.
TEST(LlamaDirectory, ShowsTheBeginningOfLongTexts) {
  const fs::path folder = copy_of(kLlama);
  const std::string text(5000, 'x');
  const Json config = read_json(folder / "config.json");
  const auto expect_short = [&](const std::string& what) {
    const std::string message = message_of<Error>([&] { load_model(folder); });
    EXPECT_LT(message.size(), 600 + folder.string().size()) << what;
  };
  for (const char* key : {"model_type", "hidden_act", "hidden_size", "rope_parameters",
                          "num_hidden_layers", "quantization_config", "attention_bias"}) {
    edit_config(folder, [&](Json& json) { json[key] = text; });
    expect_short(key);
    write_file(folder / "config.json", config.dump());
  }
  edit_config(folder, [&](Json& json) { json["rope_parameters"]["rope_type"] = text; });
  expect_short("rope_type");
  edit_config(folder, [&](Json& json) {
    json = {{"model_type", "attnres"}, {"attnres", {{"attention", {text}}}}};
  });
  expect_short("attention");
  edit_config(folder, [&](Json& json) {
    json = {{"model_type", "attnres"}, {"attnres", {{"activation", {{"type", text}}}}}};
  });
  expect_short("activation");
  write_file(folder / "config.json", config.dump());
  const Tensors tensors = read_tensors(folder);
  Tensors more = tensors;
  more.emplace_back(text, at::ones({1}));
  write_tensors(folder, more);
  expect_short("a tensor's name");
}

TEST(TiedDirectory, TakesAHeadThatIsTheEmbeddingOnly) {
  const fs::path folder = saved(small_model(residual(), {.tied = true, .precision = at::kFloat}));
  Tensors tensors = read_tensors(folder);
  const at::Tensor embedding = find(tensors, "model.embed_tokens.weight");
  tensors.emplace_back("lm_head.weight", embedding);
  write_tensors(folder, tensors);
  EXPECT_NO_THROW(load_model(folder));
  find(tensors, "lm_head.weight") = embedding + 1;
  write_tensors(folder, tensors);
  EXPECT_THAT(message_of<Error>([&] { load_model(folder); }), HasSubstr("lm_head.weight"));
}

TEST(ModelEnds, AreThoseOfBothFilesAndTheTokenizer) {
  const fs::path folder = copy_of(kLlama);
  const auto write_ends = [&](const Json& ends) {
    write_text(folder / "generation_config.json", Json{{"eos_token_id", ends}}.dump());
  };
  edit_config(folder, [](Json& json) { json["eos_token_id"] = 3; });
  EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, 3);
  write_ends(3);
  EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, 3);
  write_ends(nullptr);
  EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, 3);
  write_ends({9, 3, 7});
  EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, Json({3, 9, 7}));
  EXPECT_THAT(ModelDirectory(folder).ends(nullptr), ElementsAre(3, 7, 9));
  const ByteTokenizer bytes;
  EXPECT_THAT(ModelDirectory(folder).ends(&bytes), ElementsAre(0, 3, 7, 9));
  edit_config(folder, [](Json& json) { json.erase("eos_token_id"); });
  write_ends(5);
  EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, 5);

  // A copy says it in the one file that it has.
  const fs::path out = fresh_folder("out") / "copy";
  write_ends({5, 8});
  save_model_folder_like(out, *load_model(folder), ModelDirectory(folder), /*context=*/64);
  EXPECT_EQ(read_json(out / "config.json")["eos_token_id"], Json({5, 8}));
}

// A file may name what is no token of its model; no text can end there.
TEST(ModelEnds, AreTokensOfTheModel) {
  const fs::path folder = copy_of(kLlama);
  const int64_t size = read_json(folder / "config.json")["vocab_size"];
  const std::string known = fmt::format("the token ids 0 to {}", size - 1);
  edit_config(folder, [](Json& json) { json["eos_token_id"] = 3; });
  for (const Json& wrong : {Json("</s>"), Json(-1), Json(size), Json(1.5), Json(true),
                            Json(UINT64_MAX), Json::object()}) {
    const auto notes = [&] { return ModelDirectory(folder).notes(); };
    write_text(folder / "generation_config.json", Json{{"eos_token_id", {7, wrong}}}.dump());
    EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, Json({3, 7})) << wrong;
    EXPECT_THAT(notes(), ElementsAre(AllOf(HasSubstr("generation_config.json: eos_token_id: not"),
                                           HasSubstr(wrong.dump()), HasSubstr(known))));
    fs::remove(folder / "generation_config.json");
    const Json before = read_json(folder / "config.json");
    edit_config(folder, [&](Json& json) { json["eos_token_id"] = {wrong, 5}; });
    EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, 5);
    EXPECT_THAT(notes(), ElementsAre(AllOf(HasSubstr("/config.json: eos_token_id: not read: "),
                                           HasSubstr(wrong.dump()), HasSubstr(known))));
    edit_config(folder, [&](Json& json) { json["bos_token_id"] = json["eos_token_id"] = wrong; });
    EXPECT_EQ(ModelDirectory(folder).stored().document_ids.end, nullptr);
    EXPECT_EQ(ModelDirectory(folder).stored().document_ids.begin, nullptr);
    EXPECT_THAT(notes(), ElementsAre(HasSubstr("bos_token_id"), HasSubstr("eos_token_id")));
    EXPECT_EQ(ModelDirectory(folder).ids()->end_of_document(), -1);
    write_text(folder / "config.json", before.dump());
  }
}

TEST(ModelEnds, AreKeptByACopyWithGenerationConfig) {
  const fs::path folder = copy_of(kLlama), out = fresh_folder("out") / "copy";
  write_text(folder / "generation_config.json", R"({"eos_token_id": [9, 7], "top_k": 5})");
  const ModelDirectory directory(folder);
  save_model_folder(out, *directory.load(), ByteTokenizer(), /*context=*/64,
                    stored_generation(directory));
  EXPECT_EQ(read_file(out / "generation_config.json"),
            read_file(folder / "generation_config.json"));
  EXPECT_EQ(read_json(out / "config.json")["eos_token_id"], Json({0, 9, 7}));
}

TEST(ModelEnds, AreReadBesideAGenerationConfigThatIsBroken) {
  const fs::path folder = copy_of(kLlama);
  edit_config(folder, [](Json& json) { json["eos_token_id"] = 3; });
  write_text(folder / "generation_config.json", "{");
  const ModelDirectory directory(folder);
  EXPECT_THAT(directory.ends(nullptr), ElementsAre(3));
  EXPECT_THAT(directory.notes(), ElementsAre(AllOf(HasSubstr("generation_config.json"),
                                                   HasSubstr("a text's end is not read"))));
}

TEST(FindModelDirectory, TakesAModelOrTheBestCheckpointOfARun) {
  const fs::path run = fresh_folder("run");
  EXPECT_EQ(find_model(kLlama), kLlama);
  fs::create_directories(run / "checkpoints");
  EXPECT_THAT(message_of<Error>([&] { find_model(run); }), HasSubstr("no checkpoint yet"));
  const fs::path best = run / "checkpoints/best";
  write_text(best / "config.json", "{}");
  EXPECT_EQ(find_model(run), best);
  EXPECT_EQ(find_model(best), best);
}

TEST(FindModelDirectory, RepairsAnInterruptedCheckpoint) {
  // Killed between the renames of write_folder: the new folder is complete, the old one aside.
  for (const bool by_run : {true, false}) {
    const fs::path run = fresh_folder("run");
    const fs::path best = run / "checkpoints/best";
    write_text(run / "checkpoints/best.new/config.json", "{}");
    write_text(run / "checkpoints/best.old/config.json", "{}");
    EXPECT_EQ(find_model(by_run ? run : best), best);
    EXPECT_TRUE(fs::exists(best / "config.json"));
    EXPECT_FALSE(fs::exists(run / "checkpoints/best.old"));
  }
}

TEST(FindModelDirectory, LeavesARunningTrainingAlone) {
  const fs::path run = fresh_folder("run");
  write_text(run / "checkpoints/best/config.json", "{}");
  write_text(run / "checkpoints/best.part/config.json", "{");
  const FolderLock training(run);
  EXPECT_EQ(find_model(run), run / "checkpoints/best");
  EXPECT_TRUE(fs::exists(run / "checkpoints/best.part"));
}

TEST(FindModelDirectory, SaysWhatItMayNotRead) {
  const fs::path folder = fresh_folder("locked");
  write_text(folder / "model/config.json", "{}");
  fs::permissions(folder, fs::perms::none);
  {
    const WithoutRootsRights user;
    EXPECT_THAT(message_of<Error>([&] { find_model(folder / "model"); }),
                HasSubstr("model: cannot be seen: Permission denied"));
    EXPECT_THAT(message_of<Error>([&] { find_model(folder); }),
                HasSubstr("cannot be seen: Permission denied"));
  }
  fs::permissions(folder, fs::perms::owner_all);
}

TEST(FindModelDirectory, TouchesNothingOutsideARun) {
  const fs::path folder = fresh_folder("models");
  write_text(folder / "mine/config.json", "{}");
  write_text(folder / "mine.old/config.json", "{}");
  find_model(folder / "mine");
  EXPECT_TRUE(fs::exists(folder / "mine.old/config.json"));
}

TEST(FindModelDirectory, SaysWhatAFolderHoldsInstead) {
  const fs::path folder = fresh_folder("adapter");
  const auto message = [&] { return message_of<Error>([&] { find_model(folder); }); };
  write_text(folder / "adapter_config.json",
             R"({"peft_type": "LORA", "base_model_name_or_path": "meta/llama"})");
  EXPECT_THAT(message(), AllOf(HasSubstr("it is a LoRA adapter of meta/llama"),
                               HasSubstr("merge_and_unload")));
  write_text(folder / "adapter_config.json", R"({"peft_type": "IA3"})");
  EXPECT_THAT(message(), HasSubstr("it is a IA3 adapter, no model"));
  write_text(folder / "adapter_config.json", "broken");
  EXPECT_THAT(message(), HasSubstr("it is a LoRA adapter, no model"));
  // Saved with its model's configuration beside it.
  write_text(folder / "config.json", read_file(kLlama / "config.json"));
  EXPECT_THAT(message_of<Error>([&] { load_model(folder); }), HasSubstr("LoRA adapter"));
  fs::remove(folder / "config.json");
  fs::remove(folder / "adapter_config.json");

  const fs::path file = fresh_folder("file") / "model.safetensors";
  write_text(file, "");
  write_text(file.parent_path() / "config.json", "{}");
  EXPECT_THAT(message_of<Error>([&] { find_model(file); }),
              HasSubstr("did you mean its folder, " + file.parent_path().string()));
}

TEST(FindModelDirectory, SaysWhatIsMissing) {
  const fs::path folder = fresh_folder("empty"), without = fresh_folder("without");
  fs::copy_file(kLlama / "model.safetensors", without / "model.safetensors");
  EXPECT_THAT(message_of<Error>([&] { find_model(without); }),
              HasSubstr(without.string() + ": config.json is missing"));
  EXPECT_THAT(message_of<Error>([&] { find_model(folder / "nowhere"); }), HasSubstr("no such"));
  EXPECT_THAT(message_of<Error>([&] { find_model(folder); }), HasSubstr("config.json"));
  write_text(folder / "file", "");
  EXPECT_THAT(message_of<Error>([&] { find_model(folder / "file"); }),
              HasSubstr("is neither a folder nor a GGUF file"));
  write_text(folder / "study.json", "{}");
  EXPECT_THAT(message_of<Error>([&] { find_model(folder); }),
              HasSubstr("holds a study, whose runs have a model each; name one of them, " +
                        (folder / "runs/NAME").string()));
}

}  // namespace
}  // namespace attnres::testing::model_directory_test
