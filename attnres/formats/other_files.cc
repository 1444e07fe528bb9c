#include "attnres/formats/other_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kAdapterConfig = "adapter_config.json";

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "a LoRA adapter of BASE", as far as its configuration says so.
std::string describe_adapter(const fs::path& config) {
  std::string type = "LoRA", base;
  try {
    const Json json = read_json(config);
    const auto text = [&](const char* key) {
      const bool is_text = json.is_object() && json.contains(key) && json[key].is_string();
      return is_text ? one_line(json[key].get<std::string>()) : "";
    };
    if (const std::string said = text("peft_type"); !said.empty() && said != "LORA") type = said;
    base = text("base_model_name_or_path");
  } catch (const Error&) {
    // Whatever it says, it is an adapter's.
  }
  return fmt::format("a {} adapter{}", type, base.empty() ? "" : " of " + base);
}

constexpr size_t kSafetensorsHeader = 8;  // where it begins, with a brace

constexpr const char* kBeforeGguf =
    "of llama.cpp from before GGUF, which nothing reads any more; take the model as GGUF";

struct OtherFile {
  std::function<bool(const std::string& name)> is;
  const char* advice;
};

const std::vector<OtherFile>& other_files() {
  const auto ends = [](const std::vector<std::string>& ends) {
    return [ends](const std::string& name) {
      return std::any_of(ends.begin(), ends.end(),
                         [&](const std::string& end) { return name.ends_with(end); });
    };
  };
  const auto named = [](const std::string& begin, const std::string& end) {
    return [begin, end](const std::string& name) {
      return name.starts_with(begin) && name.ends_with(end);
    };
  };
  static const std::vector<OtherFile> all = {
      {named("ggml", ".bin"), kBeforeGguf},
      {named("consolidated", ".pth"),
       "pickles of the author's own program, a file for each of its GPUs; take the model's version "
       "for transformers, or convert them with transformers' convert_..._weights_to_hf.py"},
      {ends({".bin", ".bin.index.json", ".pt", ".pth", ".ckpt"}),
       "pickles, which attnres does not read; save the model again with transformers, as "
       "safetensors: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)"},
      {ends({".gguf"}), "a GGUF file; name the file itself"},
      {named("model-", ".safetensors"),
       "a part of a model, but not model.safetensors.index.json, which says what each part holds; "
       "restore it from a copy"},
      {named("consolidated", ".safetensors"),
       "weights under their author's own names; take the model's version for transformers, or "
       "convert them to it first"},
      {ends({".safetensors"}), "safetensors of another name than model.safetensors"},
      {[](const std::string& name) { return name == "onnx" || name.ends_with(".onnx"); },
       "which has the model's operations (ONNX), not its layers; take it as safetensors or GGUF"},
      {ends({".h5", ".msgpack", ".nemo", ".tflite", ".mlpackage"}),
       "which attnres does not read; save the model with transformers, as safetensors"}};
  return all;
}

}  // namespace

std::string what_it_holds_instead(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  const bool is_adapter = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == kAdapterConfig || name.starts_with("adapter_model.");
  });
  if (is_adapter) {
    return fmt::format(
        ": it is {}, no model; put it into its model first, with peft: "
        "PeftModel.from_pretrained(MODEL, DIR).merge_and_unload().save_pretrained(OUT)",
        describe_adapter(folder / kAdapterConfig));
  }
  for (const OtherFile& other : other_files()) {
    const auto found = std::find_if(names.begin(), names.end(), other.is);
    if (found != names.end()) {
      return fmt::format(": it holds {}, {}", one_line(*found), other.advice);
    }
  }
  return "";
}

std::string what_a_file_is(const fs::path& file) {
  std::error_code none;
  if (!fs::is_regular_file(file, none)) return "";
  std::string start(12, '\0');
  std::ifstream(file, std::ios::binary).read(start.data(), static_cast<int64_t>(start.size()));
  for (const char* magic : {"lmgg", "fmgg", "tjgg", "algg"}) {
    if (start.starts_with(magic)) return fmt::format(": it is {}", kBeforeGguf);
  }
  if (start.find('{') == kSafetensorsHeader) {
    return ": it is a file of safetensors; name its folder, with the model's config.json in it";
  }
  const std::string name = file.filename().string();
  for (const OtherFile& other : other_files()) {
    if (other.is(name)) return fmt::format(": it is {}, {}", one_line(name), other.advice);
  }
  return "";
}

}  // namespace attnres
