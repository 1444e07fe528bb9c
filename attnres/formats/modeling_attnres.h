// modeling_attnres.py, which native model directories carry so that transformers can load them:
//   AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
#pragma once

#include <string_view>

namespace attnres {

inline constexpr const char* kModelingFile = "modeling_attnres.py";

// The text of the file of this name beside this header.
std::string_view modeling_attnres();

}  // namespace attnres
