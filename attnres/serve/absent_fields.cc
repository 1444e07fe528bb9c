#include "attnres/serve/absent_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {
namespace {

struct AbsentField {
  const char* name;
  std::vector<Json> harmless = {};  // beside null and what is empty
};

using AbsentFields = std::vector<AbsentField>;

void refuse_all(const JsonFields& fields, const AbsentFields& absent) {
  for (const AbsentField& field : absent) {
    const auto& harmless = field.harmless;
    if (std::find(harmless.begin(), harmless.end(), fields.find(field.name)) == harmless.end()) {
      fields.require_none(field.name);
    }
  }
}

const AbsentFields& of_content() {
  static const AbsentFields all = {
      // What the answer has to be.
      {"guided_whitespace_pattern"},
      {"modalities", {Json::array({"text"})}},
      {"audio"},
      {"verbosity"},
      // Tools, searches, thoughts.
      {"functions"},
      {"function_call", {"none", "auto"}},
      {"web_search_options"},
      {"reasoning"},
      {"thinking"},
      {"thinking_budget_tokens"},
      // What is made of the prompt.
      {"images"},
      {"truncate_prompt_tokens"},
      {"lora"},
      {"lora_request"},
  };
  return all;
}

const AbsentFields& of_sampling() {
  static const AbsentFields all = {
      // Where it ends.
      {"stop_regex"},
      {"include_stop_str_in_output", {false}},
      {"skip_special_tokens", {true}},
      {"n_predict"},
      {"max_new_tokens"},
      // How tokens are drawn.
      {"use_beam_search", {false}},
      {"length_penalty", {1}},
      {"early_stopping", {false}},
      {"bad_words"},
      {"allowed_token_ids"},
      {"no_repeat_ngram_size", {0}},
      {"repeat_penalty", {1}},
      {"typical_p", {1}},
      {"tfs_z", {1}},
      {"top_a", {0}},
      {"top_n_sigma", {-1, 0}},
      {"mirostat", {0}},
      {"dynatemp_range", {0}},
      {"dry_multiplier", {0}},
      {"xtc_probability", {0}},
      {"samplers"},
      {"n_probs", {0}},
  };
  return all;
}

}  // namespace

void refuse_absent_of_completions(const JsonFields& fields) {
  static const AbsentFields own = {
      {"suffix"},
      {"messages"},
      {"max_completion_tokens"},
      {"top_logprobs"},
      {"tools"},
      {"tool_choice", {"none", "auto"}},
      {"documents"},
      {"reasoning_effort", {"none"}},
      {"chat_template_kwargs"},
      {"continue_final_message", {false}},
  };
  for (const auto* absent : {&of_content(), &of_sampling(), &own}) refuse_all(fields, *absent);
}

void refuse_absent_of_chat(const JsonFields& fields) {
  static const AbsentFields own = {
      {"prompt"},
      {"suffix"},
      {"echo", {false}},
      {"chat_template"},
  };
  for (const auto* absent : {&of_content(), &of_sampling(), &own}) refuse_all(fields, *absent);
  refuse_special_tokens(fields);
}

void refuse_special_tokens(const JsonFields& fields) {
  static const AbsentFields own = {{"add_special_tokens", {false}}};
  refuse_all(fields, own);
}

void refuse_absent_of_message(const Json& message) {
  // What templates write of a message, beside its role and content.
  for (const char* name : {"function_call", "audio", "prefix"}) {
    const Json value = message.value(name, Json());
    if (means_nothing(value) || value == Json(false)) continue;
    refuse_unsupported(fmt::format("messages: {}", name),
                       fmt::format("this server does not have it, got {}", shown(value)));
  }
}

void refuse_absent_of_tokenize(const JsonFields& fields) {
  static const AbsentFields own = {
      {"chat_template"},
      {"return_token_strs", {false}},
      {"with_pieces", {false}},
  };
  refuse_all(fields, own);
}

}  // namespace attnres
