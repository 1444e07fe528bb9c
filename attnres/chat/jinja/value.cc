#include "attnres/chat/jinja/value.h"

#include <algorithm>

#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

constexpr int kDeepestValue = 100;
const char* const kGenerator = "generator";
const char* const kRange = "range";

int depth_of(const Value& value) {
  if (const ListNode* list = value.as_list()) return list->depth;
  if (const DictNode* dict = value.as_dict()) return dict->depth;
  if (const FunctionNode* function = value.as_function()) return function->depth;
  if (const LoopNode* loop = value.as_loop()) return loop->depth;
  return 0;
}

void require_shallow(int depth) {
  require(depth <= kDeepestValue, "it makes lists or dicts that are nested {} deep", depth);
}

// The depth of what holds these. Throws Error.
int depth_around(const Values& items) {
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, depth_of(item) + 1);
  require_shallow(depth);
  return depth;
}

// Whether two names are the same, however long.
bool same(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  spend(static_cast<int64_t>(a.size() / 32));
  return a == b;
}

}  // namespace

Text& Text::operator=(const Text& other) {
  if (this != &other) *this = Text(other);
  return *this;
}

void Text::hold(size_t bytes, bool marked) {
  check_text_bytes(static_cast<int64_t>(size() + bytes));
  spend(1 + static_cast<int64_t>(bytes / 32));
  held_.add(static_cast<int64_t>(bytes + (marked ? size() + bytes - written_.size() : 0)));
}

void Text::append(const Text& more) {
  const bool marked = !more.written_.empty() || !written_.empty();
  hold(more.size(), marked);
  if (marked) {
    written_.resize(bytes_.size(), 0);
    written_ += more.written_;
    written_.resize(bytes_.size() + more.size(), 0);
  }
  bytes_ += more.bytes_;
}

void Text::append(std::string_view more, bool written) {
  const bool marked = written || !written_.empty();
  hold(more.size(), marked);
  if (marked) {
    written_.resize(bytes_.size(), 0);
    written_.resize(bytes_.size() + more.size(), written ? 1 : 0);
  }
  bytes_ += more;
}

Text Text::slice(size_t begin, size_t count) const {
  Text part;
  begin = std::min(begin, size());
  part.hold(std::min(count, size() - begin), !written_.empty());
  part.markup_ = markup_;
  part.bytes_ = bytes_.substr(begin, count);
  if (!written_.empty()) part.written_ = written_.substr(begin, count);
  return part;
}

Value Value::undefined(std::string_view name) {
  constexpr size_t kShown = 100;
  return Value(Held(Undefined{std::make_shared<const std::string>(name.substr(0, kShown))}));
}

Value Value::text(Text value) {
  return Value(Held(std::make_shared<const TextNode>(std::move(value))));
}

Value Value::list(Values items, bool tuple) {
  const int depth = depth_around(items);
  spend(1 + static_cast<int64_t>(items.size() / 4));
  return Value(Held(std::shared_ptr<const ListNode>(
      new ListNode{.items = std::move(items), .tuple = tuple, .depth = depth})));
}

Value Value::view(const char* type, Values items) {
  const int depth = depth_around(items);
  spend(1 + static_cast<int64_t>(items.size() / 4));
  return Value(Held(std::shared_ptr<const ListNode>(
      new ListNode{.items = std::move(items), .tuple = false, .depth = depth, .view = type})));
}

Value Value::generator(Values items) {
  return view(kGenerator, std::move(items));
}

Value Value::range(Values items) {
  return view(kRange, std::move(items));
}

Value Value::group(Value key, Values items) {
  Values pair = {std::move(key), list(std::move(items))};
  const int depth = depth_around(pair);
  return Value(Held(std::shared_ptr<const ListNode>(
      new ListNode{.items = std::move(pair), .tuple = true, .depth = depth, .group = true})));
}

bool ListNode::generator() const {
  return view == kGenerator;
}
bool ListNode::range() const {
  return view == kRange;
}

Value Value::dict(Entries entries) {
  int depth = 1;
  for (const auto& [key, value] : entries) depth = std::max(depth, depth_of(value) + 1);
  require_shallow(depth);
  spend(1 + static_cast<int64_t>(entries.size() / 2));
  return Value(Held(std::shared_ptr<const DictNode>(
      new DictNode{.entries = std::move(entries), .depth = depth})));
}

Value Value::function(std::string name, std::function<Value(const Arguments&)> call) {
  return Value(
      Held(std::make_shared<const FunctionNode>(FunctionNode{std::move(name), std::move(call)})));
}

Value Value::method(std::string name, const Value& object,
                    std::function<Value(const Arguments&)> call) {
  const int depth = depth_of(object) + 1;
  require_shallow(depth);
  return Value(Held(
      std::make_shared<const FunctionNode>(FunctionNode{std::move(name), std::move(call), depth})));
}

LoopNode::LoopNode(Values all) : items(std::move(all)), depth(depth_around(items)) {}

template <class Node>
Node* Value::node() const {
  const auto* held = std::get_if<std::shared_ptr<Node>>(&held_);
  return held ? held->get() : nullptr;
}
const Text* Value::as_text() const {
  const auto* held = node<const TextNode>();
  return held ? &held->text : nullptr;
}
const ListNode* Value::as_list() const {
  return node<const ListNode>();
}
const DictNode* Value::as_dict() const {
  return node<const DictNode>();
}
NamespaceNode* Value::as_space() const {
  return node<NamespaceNode>();
}
const FunctionNode* Value::as_function() const {
  return node<const FunctionNode>();
}
LoopNode* Value::as_loop() const {
  return node<LoopNode>();
}

const void* Value::identity() const {
  if (const void* list = as_list()) return list;
  if (const void* dict = as_dict()) return dict;
  if (const void* space = as_space()) return space;
  if (const void* function = as_function()) return function;
  return as_loop();
}

std::string Value::type() const {
  constexpr std::string_view kTypes[] = {"Undefined", "NoneType", "bool",       "int",
                                         "float",     "str",      "list",       "dict",
                                         "Namespace", "function", "LoopContext"};
  if (as_list() != nullptr && as_list()->tuple) return "tuple";
  if (as_list() != nullptr && as_list()->view != nullptr) return as_list()->view;
  return std::string(kTypes[held_.index()]);
}

const std::string& Value::undefined_name() const {
  static const std::string nothing = "what comes";
  const auto* undefined = std::get_if<Undefined>(&held_);
  return undefined != nullptr && undefined->name ? *undefined->name : nothing;
}

const Value* DictNode::find(const Value& key) const {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return equal(entry.first, key); });
  return found == entries.end() ? nullptr : &found->second;
}

const Value* DictNode::find(std::string_view key) const {
  spend(1 + static_cast<int64_t>(entries.size() / 8));
  for (const auto& [name, value] : entries) {
    if (name.as_text() != nullptr && same(name.as_text()->bytes(), key)) return &value;
  }
  return nullptr;
}

Value* NamespaceNode::find(std::string_view name) {
  spend(1 + static_cast<int64_t>(entries.size() / 8));
  for (auto& [key, value] : entries) {
    if (same(key, name)) return &value;
  }
  return nullptr;
}

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < given.size()) return &given[index];
  spend(static_cast<int64_t>(named.size() / 4));
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Arguments::get(size_t index, std::string_view name, Value otherwise) const {
  const Value* value = find(index, name);
  return value ? *value : std::move(otherwise);
}

const Value& Arguments::need(size_t index, std::string_view name) const {
  const Value* value = find(index, name);
  require(value != nullptr, "expected an argument {}", name);
  return *value;
}

Arguments Arguments::rest(size_t first) const {
  spend(1 + static_cast<int64_t>(given.size() / 4 + named.size() / 2));
  for (const auto& [name, value] : named) spend(static_cast<int64_t>(name.size() / 32));
  Arguments others = *this;
  const size_t leave = std::min(first, given.size());
  others.given.erase(others.given.begin(), others.given.begin() + static_cast<int64_t>(leave));
  return others;
}

bool is_numeric(const Value& value) {
  return value.as_boolean() || value.as_integer() || value.as_number();
}

int64_t integer_of(const Value& value, std::string_view what) {
  if (const bool* boolean = value.as_boolean()) return *boolean ? 1 : 0;
  const int64_t* integer = value.as_integer();
  require(integer != nullptr, "expected an int for {}, got {}", what, value.type());
  return *integer;
}

double number_of(const Value& value) {
  if (const double* number = value.as_number()) return *number;
  return static_cast<double>(integer_of(value, "a number"));
}

void require_hashable(const Value& key) {
  spend(1);
  const ListNode* list = key.as_list();
  if (list != nullptr && list->tuple) {
    for (const Value& item : list->items) require_hashable(item);
    return;
  }
  require(list == nullptr && key.as_dict() == nullptr, "a {} cannot be a key", key.type());
}

bool truth(const Value& value) {
  if (const bool* boolean = value.as_boolean()) return *boolean;
  if (const int64_t* integer = value.as_integer()) return *integer != 0;
  if (const double* number = value.as_number()) return *number != 0;
  if (const Text* text = value.as_text()) return text->size() > 0;
  if (const ListNode* list = value.as_list()) return list->generator() || !list->items.empty();
  if (const DictNode* dict = value.as_dict()) return !dict->entries.empty();
  return !value.is_undefined() && !value.is_none();
}

bool equal(const Value& a, const Value& b) {
  spend(1);
  if (is_numeric(a) && is_numeric(b)) {
    if (a.as_number() || b.as_number()) return number_of(a) == number_of(b);
    return integer_of(a, "") == integer_of(b, "");
  }
  if (a.type() != b.type()) return false;
  if (const Text* text = a.as_text()) {
    if (text->size() != b.as_text()->size()) return false;
    spend(static_cast<int64_t>(text->size() / 32));
    return text->bytes() == b.as_text()->bytes();
  }
  if (const ListNode* list = a.as_list()) {
    const auto& other = b.as_list()->items;
    if (list->generator()) return a.identity() == b.identity();
    return list->items.size() == other.size() &&
           std::equal(list->items.begin(), list->items.end(), other.begin(), equal);
  }
  if (const DictNode* dict = a.as_dict()) {
    if (dict->entries.size() != b.as_dict()->entries.size()) return false;
    return std::all_of(dict->entries.begin(), dict->entries.end(), [&](const auto& entry) {
      const Value* other = b.as_dict()->find(entry.first);
      return other != nullptr && equal(entry.second, *other);
    });
  }
  return a.is_none() || a.is_undefined() || a.identity() == b.identity();
}

bool less(const Value& a, const Value& b) {
  spend(1);
  if (is_numeric(a) && is_numeric(b)) {
    if (a.as_number() || b.as_number()) return number_of(a) < number_of(b);
    return integer_of(a, "") < integer_of(b, "");
  }
  if (a.as_text() && b.as_text()) {
    spend(static_cast<int64_t>(std::min(a.as_text()->size(), b.as_text()->size()) / 32));
    return a.as_text()->bytes() < b.as_text()->bytes();
  }
  if (a.as_list() && b.as_list() && a.type() == b.type()) {
    const auto& left = a.as_list()->items;
    const auto& right = b.as_list()->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) return less(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  if (a.is_undefined()) fail("{} is undefined", a.undefined_name());
  if (b.is_undefined()) fail("{} is undefined", b.undefined_name());
  fail("a {} and a {} have no order", a.type(), b.type());
}

Offsets character_offsets(std::string_view text) {
  spend(1 + static_cast<int64_t>(text.size() / 8));
  Offsets offsets;
  offsets.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); at += utf8_step(text.substr(at)).bytes) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  return offsets;
}

int64_t length_of(const Value& value) {
  if (const Text* text = value.as_text()) {
    return static_cast<int64_t>(character_offsets(text->bytes()).size()) - 1;
  }
  if (const ListNode* list = value.as_list(); list != nullptr && !list->generator()) {
    return static_cast<int64_t>(list->items.size());
  }
  if (const DictNode* dict = value.as_dict()) return static_cast<int64_t>(dict->entries.size());
  if (const LoopNode* loop = value.as_loop()) return static_cast<int64_t>(loop->items.size());
  require(value.is_undefined(), "a {} has no length", value.type());
  return 0;
}

Values items_of(const Value& value) {
  Values items;
  if (const ListNode* list = value.as_list()) {
    items.assign(list->items.begin() + static_cast<int64_t>(list->taken), list->items.end());
    if (list->generator()) list->taken = list->items.size();
  } else if (const DictNode* dict = value.as_dict()) {
    for (const auto& entry : dict->entries) items.push_back(entry.first);
  } else if (const Text* text = value.as_text()) {
    spend(static_cast<int64_t>(text->size()));
    const Offsets offsets = character_offsets(text->bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      Text one = text->slice(offsets[i], offsets[i + 1] - offsets[i]);
      one.set_markup(false);
      items.push_back(Value::text(std::move(one)));
    }
  } else {
    require(value.is_undefined(), "a {} cannot be gone through", value.type());
  }
  spend(1 + static_cast<int64_t>(items.size() / 4));
  return items;
}

}  // namespace attnres::jinja
