// What the expressions of a template have for values: Python's, as far as templates need them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "attnres/chat/jinja/meter.h"

namespace attnres::jinja {

// Text that knows which of its bytes a user wrote, through all that a template does with it.
class Text {
 public:
  Text() = default;
  // A copy takes steps, as what is appended does.
  Text(const Text& other) : markup_(other.markup_) { append(other); }
  Text& operator=(const Text& other);
  Text(Text&&) noexcept = default;
  Text& operator=(Text&&) noexcept = default;
  Text(std::string_view bytes, bool written = false) { append(bytes, written); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool written(size_t at) const { return !written_.empty() && written_[at] != 0; }
  // Python's Markup: texts that are added to it are escaped as HTML.
  bool markup() const { return markup_; }
  void set_markup(bool markup) { markup_ = markup; }

  // Throw Error where a text would be too long, or all values take too much.
  void append(const Text& more);
  void append(std::string_view more, bool written = false);
  Text slice(size_t begin, size_t count = std::string::npos) const;

 private:
  // Before so many bytes are appended, with marks or without.
  void hold(size_t bytes, bool marked);

  std::string bytes_;
  std::string written_;  // a byte of 0 or 1 for each; empty where none was written
  bool markup_ = false;
  HeldBytes held_;
};

class Value;
using Values = std::vector<Value, Counted<Value>>;
using Entries = std::vector<std::pair<Value, Value>, Counted<std::pair<Value, Value>>>;

struct TextNode;
struct ListNode;
struct DictNode;
struct NamespaceNode;
struct FunctionNode;
struct LoopNode;
struct Arguments;

struct Undefined {
  std::shared_ptr<const std::string> name;  // what is undefined
};
struct None {};

// What lists and dicts hold never changes, so that only a namespace can contain itself, and nothing
// looks into those.
class Value {
 public:
  Value() : held_(Undefined{}) {}

  // Keeps the beginning of a long name.
  static Value undefined(std::string_view name);
  static Value none() { return Value(Held(None{})); }
  static Value boolean(bool value) { return Value(Held(value)); }
  static Value integer(int64_t value) { return Value(Held(value)); }
  static Value number(double value) { return Value(Held(value)); }
  static Value text(Text value);
  static Value text(std::string_view value) { return text(Text(value)); }
  // These throw Error where they would be nested too deeply.
  static Value list(Values items, bool tuple = false);
  // What a dict's method gives, which only loops and filters take: "dict_items".
  static Value view(const char* type, Values items);
  // What filters give that Python makes item by item: it is gone through once, and counts as true.
  static Value generator(Values items);
  // What has no text and no JSON, but items.
  static Value range(Values items);
  // A pair with the attributes `grouper` and `list`.
  static Value group(Value key, Values items);
  static Value dict(Entries entries);
  static Value function(std::string name, std::function<Value(const Arguments&)> call);
  // A function that holds an object.
  static Value method(std::string name, const Value& object,
                      std::function<Value(const Arguments&)> call);
  static Value space(std::shared_ptr<NamespaceNode> node) { return Value(Held(std::move(node))); }
  static Value loop(std::shared_ptr<LoopNode> node) { return Value(Held(std::move(node))); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(held_); }
  bool is_none() const { return std::holds_alternative<None>(held_); }
  // Null of other kinds.
  const bool* as_boolean() const { return std::get_if<bool>(&held_); }
  const int64_t* as_integer() const { return std::get_if<int64_t>(&held_); }
  const double* as_number() const { return std::get_if<double>(&held_); }
  const Text* as_text() const;
  const ListNode* as_list() const;
  const DictNode* as_dict() const;
  NamespaceNode* as_space() const;
  const FunctionNode* as_function() const;
  LoopNode* as_loop() const;
  const void* identity() const;  // of what two values share; null of plain ones

  // What Python would call it: "int", "str", ..
  std::string type() const;
  const std::string& undefined_name() const;

 private:
  using Held = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const TextNode>,
                            std::shared_ptr<const ListNode>, std::shared_ptr<const DictNode>,
                            std::shared_ptr<NamespaceNode>, std::shared_ptr<const FunctionNode>,
                            std::shared_ptr<LoopNode>>;
  explicit Value(Held held) : held_(std::move(held)) {}
  template <class Node>
  Node* node() const;

  Held held_;
};

struct TextNode {
  explicit TextNode(Text value) : text(std::move(value)) {}
  Text text;
  HeldBytes bytes = HeldBytes(sizeof(TextNode));
};

struct ListNode {
  Values items;
  bool tuple;
  int depth;                   // of what holds values, within each other
  const char* view = nullptr;  // the type's name of what is no list: a dict's view, a range ..
  bool group = false;
  mutable size_t taken = 0;  // of a generator's items

  bool generator() const;
  bool range() const;
  HeldBytes bytes = HeldBytes(sizeof(ListNode));
};

struct DictNode {
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;

  Entries entries;
  int depth;
  HeldBytes bytes = HeldBytes(sizeof(DictNode));
};

struct NamespaceNode {
  Value* find(std::string_view name);

  std::vector<std::pair<std::string, Value>> entries;
  HeldBytes bytes = HeldBytes(sizeof(NamespaceNode));
};

struct FunctionNode {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int depth = 0;
};

// `loop` within a loop.
struct LoopNode {
  // Throws Error where the items are nested too deeply.
  explicit LoopNode(Values all);

  Values items;
  int depth;
  size_t index = 0;
  bool ended = false;
  int level = 1;  // of a recursive loop
  // The loop's text over other items, of a recursive loop that has not ended.
  std::function<Value(Values)> again = {};
  Value changed;  // what loop.changed was last asked about; nothing once the loop has ended
};

// What a call, a filter or a test is given.
struct Arguments {
  // Null where it isn't given.
  const Value* find(size_t index, std::string_view name) const;
  Value get(size_t index, std::string_view name, Value otherwise) const;
  // Throws Error where it isn't given.
  const Value& need(size_t index, std::string_view name) const;
  // A copy without the first, which takes steps.
  Arguments rest(size_t first) const;

  using Named = std::vector<std::pair<std::string, Value>, Counted<std::pair<std::string, Value>>>;
  Values given = {};
  Named named = {};
};

// Python's bool(), == and <. less() throws Error on values that have no order.
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);
// The integer of an int or a bool, the number of those and of a float; throw Error on others.
int64_t integer_of(const Value& value, std::string_view what);
bool is_numeric(const Value& value);
double number_of(const Value& value);
// What can be a key. Throws Error on others.
void require_hashable(const Value& key);

// What a loop goes through: items, keys, characters; nothing of what is undefined. Throws Error.
Values items_of(const Value& value);
// Throws Error on what has no length.
int64_t length_of(const Value& value);
// The offsets at which characters begin, and the end.
using Offsets = std::vector<size_t, Counted<size_t>>;
Offsets character_offsets(std::string_view text);

// Python's str() and repr(), and json.dumps().
Text text_of(const Value& value);
Text repr_of(const Value& value, bool sorted = false);  // the keys of dicts
struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent = {};  // of each level, on lines of their own
  std::string between = ", ";
  std::string after_key = ": ";
  bool sorted = false;
};
Text json_of(const Value& value, const JsonStyle& style);

}  // namespace attnres::jinja
