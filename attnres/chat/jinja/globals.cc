// Functions that every template has.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

// As Jinja's sandbox has it.
constexpr int64_t kLongestRange = 100'000;

Value range(const Arguments& arguments) {
  const bool one = arguments.given.size() == 1;
  const int64_t begin = one ? 0 : integer_of(arguments.need(0, "start"), "range");
  const int64_t end = integer_of(arguments.need(one ? 0 : 1, "stop"), "range");
  const int64_t step = integer_of(arguments.get(2, "step", Value::integer(1)), "range");
  require(step != 0, "range: the step must not be 0");
  const double count =
      (static_cast<double>(end) - static_cast<double>(begin)) / static_cast<double>(step);
  require(count <= static_cast<double>(kLongestRange), "range: expected at most {} numbers",
          kLongestRange);
  Values items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  spend(static_cast<int64_t>(items.size()));
  return Value::range(std::move(items));
}

// A function that gives a text at each call but the first.
Value joiner(const Arguments& arguments) {
  struct State {
    bool begun = false;
    HeldBytes bytes = HeldBytes(sizeof(State));
  };
  const auto state = std::make_shared<State>();
  const Value between = arguments.get(0, "sep", Value::text(", "));
  return Value::method("joiner", between, [between, state](const Arguments&) {
    return std::exchange(state->begun, true) ? between : Value::text("");
  });
}

Value raise_exception(const Arguments& arguments) {
  fail("{}", text_of(arguments.need(0, "message")).bytes().substr(0, 1000));
}

Value strftime_now(const Arguments& arguments) {
  const std::string given = text_of(arguments.need(0, "format")).bytes();
  require(given.size() <= 256, "strftime_now: expected a format of at most 256 bytes");
  using std::chrono::system_clock;
  const auto time = system_clock::now();
  const std::time_t now = system_clock::to_time_t(time);
  const auto past = time - system_clock::from_time_t(now);
  std::string format;
  for (size_t i = 0; i < given.size(); ++i) {
    const bool pair = given[i] == '%' && i + 1 < given.size();
    if (pair && given[i + 1] == 'f') {  // which Python has beside C's
      const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(past).count();
      format += fmt::format("{:06}", micros);
    } else {
      format += given.substr(i, pair ? 2 : 1);
    }
    i += pair ? 1 : 0;
  }
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[4096];
  return Value::text(
      std::string_view(text, std::strftime(text, sizeof text, format.c_str(), &parts)));
}

}  // namespace

void set_entry(Entries& entries, const Value& key, const Value& value) {
  require_hashable(key);
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return equal(entry.first, key); });
  if (found == entries.end()) {
    entries.emplace_back(key, value);
  } else {
    found->second = value;
  }
}

Value make_dict(const Arguments& arguments) {
  Entries entries;
  if (!arguments.given.empty()) {
    const Value& first = arguments.given[0];
    if (const DictNode* dict = first.as_dict()) {
      entries = dict->entries;
    } else {
      for (const Value& pair : items_of(first)) {
        const Values parts = items_of(pair);
        require(parts.size() == 2, "dict: expected pairs");
        set_entry(entries, parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) set_entry(entries, Value::text(name), value);
  return Value::dict(std::move(entries));
}

const Value* find_global(std::string_view name) {
  static const std::map<std::string, Value, std::less<>> globals = {
      {"range", Value::function("range", range)},
      {"dict", Value::function("dict", make_dict)},
      {"joiner", Value::function("joiner", joiner)},
      {"raise_exception", Value::function("raise_exception", raise_exception)},
      {"strftime_now", Value::function("strftime_now", strftime_now)}};
  const auto found = globals.find(name);
  return found == globals.end() ? nullptr : &found->second;
}

}  // namespace attnres::jinja
