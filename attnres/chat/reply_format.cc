#include "attnres/chat/reply_format.h"

#include <algorithm>
#include <array>
#include <utility>

namespace attnres {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

ReplyFormat kimi_k3() {
  const ArgumentForm argument = {.begin = "<|open|>argument",
                                 .head_end = "<|sep|>",
                                 .end = "<|close|>argument<|sep|>",
                                 .key_attribute = "key",
                                 .text_attribute = "type",
                                 .text_says = "string"};
  return {.thought = "<|open|>think<|sep|>",
          .thought_end = "<|close|>think<|sep|>",
          .answer = "<|open|>response<|sep|>",
          .answer_end = "<|close|>response<|sep|>",
          .calls = CallForm{.section = "<|open|>tools<|sep|>",
                            .section_end = "<|close|>tools<|sep|>",
                            .begin = "<|open|>call",
                            .head_end = "<|sep|>",
                            .end = "<|close|>call<|sep|>",
                            .name_attribute = "tool",
                            .argument = argument,
                            .object = "<|open|>json type=\"object\"<|sep|>",
                            .object_end = "<|close|>json<|sep|>"}};
}

CallForm kimi_k2() {
  return {.section = "<|tool_calls_section_begin|>",
          .section_end = "<|tool_calls_section_end|>",
          .begin = "<|tool_call_begin|>",
          .head_end = "<|tool_call_argument_begin|>",
          .end = "<|tool_call_end|>",
          .head_is_id = true};
}

// V3.1.
CallForm deepseek() {
  return {.section = "<｜tool▁calls▁begin｜>",
          .section_end = "<｜tool▁calls▁end｜>",
          .begin = "<｜tool▁call▁begin｜>",
          .head_end = "<｜tool▁sep｜>",
          .end = "<｜tool▁call▁end｜>"};
}

// R1 and V3.
CallForm deepseek_fenced() {
  CallForm form = deepseek();
  form.begin += "function<｜tool▁sep｜>";
  form.head_end = "\n```json\n";
  form.end = "\n```" + form.end;
  return form;
}

// V3.2 and later, which differ in the name of the section.
CallForm deepseek_tags(const std::string& section) {
  return {.section = "<｜DSML｜" + section + ">",
          .section_end = "</｜DSML｜" + section + ">",
          .begin = "<｜DSML｜invoke",
          .head_end = ">",
          .end = "</｜DSML｜invoke>",
          .name_attribute = "name",
          .argument = ArgumentForm{.begin = "<｜DSML｜parameter",
                                   .head_end = ">",
                                   .end = "</｜DSML｜parameter>",
                                   .key_attribute = "name",
                                   .text_attribute = "string",
                                   .text_says = "true"}};
}

CallForm hermes() {
  return {.begin = "<tool_call>", .head_end = "", .end = "</tool_call>"};
}

// Of Qwen 3 Coder and 3.5.
CallForm qwen_tags() {
  return {.section = "<tool_call>",
          .section_end = "</tool_call>",
          .begin = "<function=",
          .head_end = ">",
          .end = "</function>",
          .argument = ArgumentForm{
              .begin = "<parameter=", .head_end = ">", .end = "</parameter>", .in_lines = true}};
}

CallForm glm() {
  return {.begin = "<tool_call>",
          .head_end = "\n",
          .end = "</tool_call>",
          .argument = ArgumentForm{.begin = "<arg_key>",
                                   .head_end = "</arg_key>",
                                   .end = "</arg_value>",
                                   .value_begin = "<arg_value>"}};
}

std::optional<CallForm> call_form_of(std::string_view jinja) {
  if (has(jinja, "<|tool_calls_section_begin|>")) return kimi_k2();
  if (has(jinja, "｜DSML｜")) {
    return deepseek_tags(has(jinja, "function_calls") ? "function_calls" : "tool_calls");
  }
  if (has(jinja, "<｜tool▁call▁begin｜>")) {
    return has(jinja, "```json") ? deepseek_fenced() : deepseek();
  }
  if (!has(jinja, "<tool_call>")) return std::nullopt;
  if (has(jinja, "<arg_key>")) return glm();
  return has(jinja, "<function=") ? qwen_tags() : hermes();
}

}  // namespace

bool has_mark(const ReplyFormat& format, std::string_view part) {
  const CallForm calls = format.calls.value_or(CallForm{});
  const ArgumentForm argument = calls.argument.value_or(ArgumentForm{});
  const auto marks = {format.thought, format.thought_end, format.answer,     format.answer_end,
                      calls.section,  calls.section_end,  calls.begin,       calls.head_end,
                      calls.end,      argument.begin,     argument.head_end, argument.end};
  return std::any_of(marks.begin(), marks.end(),
                     [&](const std::string& mark) { return has(mark, part); });
}

ReplyFormat reply_format_of(std::string_view jinja) {
  if (has(jinja, "<|open|>") && has(jinja, "'think'")) return kimi_k3();
  ReplyFormat format = {.calls = call_form_of(jinja)};
  constexpr std::array<std::pair<const char*, const char*>, 3> kThoughts = {
      {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<seed:think>", "</seed:think>"}}};
  for (const auto& [begin, end] : kThoughts) {
    if (!has(jinja, end)) continue;
    format.thought = begin;
    format.thought_end = end;
  }
  return format;
}

}  // namespace attnres
