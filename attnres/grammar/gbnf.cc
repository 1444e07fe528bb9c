#include "attnres/grammar/gbnf.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attnres/grammar/gbnf_rules.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// What rules make, and how they are printed.
class GbnfPrinter {
 public:
  GbnfPrinter(std::string_view text, std::vector<GbnfRule> rules);
  // Those that root needs.
  std::string print();

 private:
  template <class Of>
  static bool any_all(const std::vector<GbnfSequence>& alternatives, const Of& of) {
    return std::any_of(alternatives.begin(), alternatives.end(), [&](const GbnfSequence& items) {
      return std::all_of(items.begin(), items.end(), of);
    });
  }
  bool may_be_empty(const GbnfItem& item) const;
  bool may_end(const GbnfItem& item) const;
  void need(const std::vector<GbnfSequence>& alternatives);
  void need_rule(size_t rule);
  void begin_with(const std::vector<GbnfSequence>& alternatives);
  void begin_with_rule(size_t rule);
  [[noreturn]] void refuse_left_recursion(size_t rule) const;
  std::string print(const std::vector<GbnfSequence>& alternatives) const;
  std::string print(const GbnfItem& item) const;
  std::string name(size_t rule) const { return rule == 0 ? "root" : fmt::format("rule_{}", rule); }

  const std::string_view text_;
  std::vector<GbnfRule> rules_;
  std::vector<bool> is_needed_, is_checked_;
  std::vector<size_t> path_ = {};  // of rules, each of which may begin with the next
};

GbnfPrinter::GbnfPrinter(std::string_view text, std::vector<GbnfRule> rules)
    : text_(text), rules_(std::move(rules)), is_needed_(rules_.size()), is_checked_(rules_.size()) {
  for (bool changed = true; changed;) {
    changed = false;
    for (GbnfRule& rule : rules_) {
      const auto find = [&](bool& known, const auto& of) {
        if (known || !any_all(rule.alternatives, of)) return;
        known = changed = true;
      };
      find(rule.may_be_empty, [this](const GbnfItem& item) { return may_be_empty(item); });
      find(rule.may_end, [this](const GbnfItem& item) { return may_end(item); });
    }
  }
}

bool GbnfPrinter::may_be_empty(const GbnfItem& item) const {
  if (item.least == 0 || item.kind == GbnfItem::Kind::nothing) return true;
  if (item.kind == GbnfItem::Kind::rule) return rules_[item.rule].may_be_empty;
  return any_all(item.alternatives, [this](const GbnfItem& part) { return may_be_empty(part); });
}

bool GbnfPrinter::may_end(const GbnfItem& item) const {
  if (item.least == 0 || item.kind == GbnfItem::Kind::nothing) return true;
  if (item.kind == GbnfItem::Kind::characters) return true;
  if (item.kind == GbnfItem::Kind::rule) return rules_[item.rule].may_end;
  return any_all(item.alternatives, [this](const GbnfItem& part) { return may_end(part); });
}

void GbnfPrinter::need(const std::vector<GbnfSequence>& alternatives) {
  for (const GbnfSequence& sequence : alternatives) {
    for (const GbnfItem& item : sequence) {
      need(item.alternatives);
      if (item.kind == GbnfItem::Kind::rule) need_rule(item.rule);
    }
  }
}

void GbnfPrinter::need_rule(size_t rule) {
  if (is_needed_[rule]) return;
  is_needed_[rule] = true;
  need(rules_[rule].alternatives);
  // The first that is found so is one that needs itself.
  if (!rules_[rule].may_end) {
    refuse_gbnf(text_, rules_[rule].place,
                "the texts of the rule \"{}\" never end; give it an alternative without itself",
                rules_[rule].name);
  }
}

void GbnfPrinter::begin_with(const std::vector<GbnfSequence>& alternatives) {
  for (const GbnfSequence& sequence : alternatives) {
    for (const GbnfItem& item : sequence) {
      begin_with(item.alternatives);
      if (item.kind == GbnfItem::Kind::rule) begin_with_rule(item.rule);
      if (!may_be_empty(item)) break;
    }
  }
}

void GbnfPrinter::begin_with_rule(size_t rule) {
  if (std::find(path_.begin(), path_.end(), rule) != path_.end()) refuse_left_recursion(rule);
  if (is_checked_[rule]) return;
  is_checked_[rule] = true;
  path_.push_back(rule);
  begin_with(rules_[rule].alternatives);
  path_.pop_back();
}

void GbnfPrinter::refuse_left_recursion(size_t rule) const {
  std::string through;
  for (auto next = std::find(path_.begin(), path_.end(), rule) + 1; next != path_.end(); ++next) {
    through += fmt::format("{}\"{}\"", through.empty() ? " through " : ", ", rules_[*next].name);
  }
  refuse_gbnf(
      text_, rules_[rule].place,
      "the rule \"{}\" may begin with itself{}, which can be read in too many ways; write a "
      "repetition: not list ::= list \",\" item | item, but list ::= item (\",\" item)*",
      rules_[rule].name, one_line(through));
}

std::string GbnfPrinter::print() {
  need_rule(0);
  std::string printed;
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    if (!is_needed_[rule]) continue;
    begin_with_rule(rule);
    printed += fmt::format("{} ::= {}\n", name(rule), print(rules_[rule].alternatives));
  }
  return printed;
}

std::string GbnfPrinter::print(const std::vector<GbnfSequence>& alternatives) const {
  std::string printed;
  for (const GbnfSequence& sequence : alternatives) {
    if (!printed.empty()) printed += "| ";
    if (sequence.empty()) printed += "\"\" ";
    for (const GbnfItem& item : sequence) printed += print(item) + " ";
  }
  return printed;
}

std::string GbnfPrinter::print(const GbnfItem& item) const {
  using Kind = GbnfItem::Kind;
  const std::string printed = item.kind == Kind::nothing      ? "\"\""
                              : item.kind == Kind::characters ? item.characters
                              : item.kind == Kind::rule
                                  ? name(item.rule)
                                  : fmt::format("({})", print(item.alternatives));
  if (item.least == 1 && item.most == 1) return printed;
  if (item.least == 0 && item.most == 1) return printed + "?";
  if (item.most != kWithoutEnd) return fmt::format("{}{{{},{}}}", printed, item.least, item.most);
  if (item.least > 1) return fmt::format("{}{{{},}}", printed, item.least);
  return printed + (item.least == 1 ? "+" : "*");
}

}  // namespace

std::string gbnf_grammar(std::string_view text) {
  return GbnfPrinter(text, read_gbnf_rules(text)).print();
}

}  // namespace attnres
