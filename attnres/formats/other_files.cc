#include "attnres/formats/other_files.h"

#include <fmt/core.h>

#include <algorithm>
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

struct OtherFile {
  std::function<bool(const std::string& name)> is;
  const char* advice;
};

const std::vector<OtherFile>& other_files() {
  const auto ends = [](std::vector<std::string> ends) {
    return [ends](const std::string& name) {
      return std::any_of(ends.begin(), ends.end(),
                         [&](const std::string& end) { return name.ends_with(end); });
    };
  };
  static const std::vector<OtherFile> all = {
      {ends({".bin", ".bin.index.json", ".pt", ".pth", ".ckpt"}),
       "pickles, which attnres does not read; save the model again with transformers, as "
       "safetensors: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)"},
      {ends({".gguf"}), "a GGUF file; name the file itself"},
      {[](const std::string& name) {
         return name.starts_with("model-") && name.ends_with(".safetensors");
       },
       "a part of a model, but not model.safetensors.index.json, which says what each part holds; "
       "restore it from a copy"},
      {[](const std::string& name) {
         return name.starts_with("consolidated") && name.ends_with(".safetensors");
       },
       "weights under their author's own names; convert them to transformers' form first"},
      {ends({".safetensors"}), "safetensors of another name than model.safetensors"},
      {ends({".h5", ".msgpack", ".onnx", ".nemo", ".tflite", ".mlpackage"}),
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

}  // namespace attnres
