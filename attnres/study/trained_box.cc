#include "attnres/study/trained_box.h"

#include <fmt/core.h>

#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "attnres/plots/html.h"
#include "attnres/support/format.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

constexpr size_t kFew = 4;  // values that are all named

using Format = std::string (*)(double);

std::string whole(double value) {
  return std::abs(value) <= 0x1p53 ? format_whole(static_cast<int64_t>(value)) : "?";
}
std::string plain(double value) {
  return fmt::format("{:g}", value);
}

std::string list_of_values(const std::set<double>& values, Format format) {
  if (values.size() > kFew) {
    return fmt::format("{} to {}", format(*values.begin()), format(*values.rbegin()));
  }
  std::string list;
  for (const double value : values) list += (list.empty() ? "" : ", ") + format(value);
  return list;
}

// What the runs that have begun say of themselves, but for trials.
class Records {
 public:
  explicit Records(const StudyData& data) {
    for (size_t i = 0; i < data.runs.size(); ++i) {
      if (data.runs[i] && !data.study.runs[i].is_trial) records_.push_back(&data.runs[i]->record);
    }
  }
  bool empty() const { return records_.empty(); }

  std::set<double> numbers(std::string_view pointer) const {
    std::set<double> values;
    for (const Json* record : records_) {
      const double number = measured_at(find(*record, pointer));
      if (!std::isnan(number)) values.insert(number);
    }
    return values;
  }
  // "64", "32, 64", "32 to 256"; "?" where no run says it.
  std::string number(std::string_view pointer, Format format = whole) const {
    const std::set<double> values = numbers(pointer);
    return values.empty() ? "?" : list_of_values(values, format);
  }
  std::string word(std::string_view pointer) const {
    std::set<std::string> words;
    for (const Json* record : records_) {
      const Json* value = find(*record, pointer);
      if (value && value->is_string()) words.insert(value->get<std::string>());
    }
    std::string list;
    for (const std::string& text : words) list += (list.empty() ? "" : ", ") + text;
    return list.empty() ? "?" : list;
  }

 private:
  std::vector<const Json*> records_;
};

std::string model_line(const Records& runs) {
  return fmt::format(
      "Transformer layers: {}; width: {}; heads: {}; feed-forward width: {}; tokenizer: {}",
      runs.number("/recipe/model/layers"), runs.number("/recipe/model/width"),
      runs.number("/recipe/model/heads"), runs.number("/recipe/model/ffn_width"),
      runs.word("/recipe/tokenizer/kind"));
}

std::string steps_line(const StudyData& data, const Records& runs) {
  std::set<double> tokens, a_parameter;
  for (const StudyRunRecord& run : data.study.runs) {
    if (run.is_trial || !run.is_done()) continue;
    tokens.insert(run.tokens);
    if (run.parameters > 0) {
      a_parameter.insert(std::round(10 * run.tokens / static_cast<double>(run.parameters)) / 10);
    }
  }
  std::string line =
      fmt::format("{} of {} sequences of {} tokens", runs.number("/recipe/train/steps"),
                  runs.number("/recipe/train/batch_size"), runs.number("/recipe/train/context"));
  if (!tokens.empty()) {
    line += fmt::format(": {} tokens a run", list_of_values(tokens, format_count));
  }
  if (!a_parameter.empty()) {
    line += fmt::format(", {} a parameter", list_of_values(a_parameter, plain));
  }
  return line;
}

std::string rate_line(const StudyData& data, const Records& runs) {
  const std::string tuned = data.study.tuning.is_null()
                                ? "tuned to no arm"
                                : "chosen by trials, see Learning rates tried";
  return fmt::format("{} at its peak ({}), after {} steps of warm-up; schedule: {}; optimizer: {}",
                     runs.number("/recipe/train/learning_rate", plain), tuned,
                     runs.number("/recipe/train/warmup"), runs.word("/recipe/train/schedule"),
                     runs.word("/recipe/train/optimizer"));
}

std::string seeds_line(const StudyData& data) {
  std::set<int64_t> seeds;
  for (const StudyRunRecord& run : data.study.runs) {
    if (!run.is_trial) seeds.insert(run.seed);
  }
  std::string line = counted(std::ssize(seeds), "seed") + " an arm";
  if (data.study.device != "cpu") return line + ", on " + data.study.device;
  if (data.study.threads > 0) line += ", on " + counted(data.study.threads, "thread") + " each";
  return line;
}

}  // namespace

std::string trained_box(const StudyData& data) {
  const Records runs(data);
  if (runs.empty()) return "";
  std::string rows;
  const auto add = [&](const char* name, const std::string& text) {
    rows += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escape_html(text));
  };
  add("Model", model_line(runs));
  add("Parameters", runs.number("/parameters"));
  add("Text",
      fmt::format("{}: {} tokens, and {} to validate on", runs.word("/data/description"),
                  runs.number("/data/train_tokens"), runs.number("/data/validation_tokens")));
  add("Steps", steps_line(data, runs));
  add("Learning rate", rate_line(data, runs));
  add("Runs", seeds_line(data));
  std::string why;
  for (const std::string& sentence : data.study.chosen_sentences()) {
    why += "<p>" + escape_html(sentence) + "</p>\n";
  }
  return "<aside id=\"trained\"><h2>What was trained</h2>\n<dl>\n" + rows + "</dl>\n" + why +
         "</aside>\n";
}

}  // namespace attnres
