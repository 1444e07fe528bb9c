// Templates as Python's Jinja renders them, set up as transformers does
// (tests/clients/chat_template_check.py renders the same cases again), and what loops, recurs or
// grows without an end.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/chat/jinja/interpreter.h"
#include "attnres/chat/jinja/json_value.h"
#include "attnres/chat/jinja/parser.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres::jinja_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string rendered(const std::string& source, const Json& variables, jinja::Limits limits = {}) {
  const jinja::Statements statements = jinja::parse(source);
  jinja::Meter meter(limits);
  jinja::Interpreter interpreter(meter);
  jinja::Interpreter::Names names;
  for (const auto& [name, value] : variables.items())
    names[name] = jinja::value_of(value, /*written=*/false);
  return interpreter.render(statements, std::move(names)).bytes();
}

// Lists of templates, of which each has variables.
const std::vector<Json>& cases() {
  const std::string folder = ATTNRES_SOURCE_DIR "/tests/fixtures/";
  static const std::vector<Json> read = {read_json(folder + "jinja_cases.json"),
                                         read_json(folder + "jinja_constructs.json")};
  return read;
}

std::string refusal(const std::string& source, const Json& variables = Json::object(),
                    jinja::Limits limits = {}) {
  try {
    rendered(source, variables, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Jinja, RendersWhatPythonDoes) {
  for (const Json& list : cases()) {
    ASSERT_GT(list["renders"].size(), 200);
    for (const Json& expected : list["renders"]) {
      const auto source = expected[0].get<std::string>();
      std::string got;
      try {
        got = rendered(source, list["variables"]);
      } catch (const Error& e) {
        got = e.what();
      }
      EXPECT_EQ(got, expected[1].get<std::string>()) << source;
    }
  }
}

TEST(Jinja, RefusesWhatPythonDoes) {
  for (const Json& list : cases()) {
    ASSERT_GT(list["refuses"].size(), 50);
    for (const Json& source : list["refuses"]) {
      EXPECT_THAT(refusal(source.get<std::string>(), list["variables"]), HasSubstr("line "))
          << source;
    }
  }
}

TEST(Jinja, SaysInWhichLineAndWhat) {
  EXPECT_EQ(refusal("a\n{{ x.y }}\n"), "line 2: x is undefined");
  EXPECT_EQ(refusal("{% if a %}\n\n{% foo %}"), "line 3: the tag foo is not supported");
  EXPECT_EQ(refusal("{{ raise_exception('no roles') }}"), "line 1: no roles");
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Each ends by a bound, not by the memory or the stack of the process.
TEST(Jinja, EndsWhatHasNoEnd) {
  const jinja::Limits limits = {
      .steps = 300'000, .text_bytes = 1 << 20, .held_bytes = 8 << 20, .depth = 1000};
  const auto expect_bound = [&](const std::string& source) {
    EXPECT_THAT(refusal(source, {}, limits),
                AnyOf(HasSubstr("steps"), HasSubstr("MiB"), HasSubstr("deep"), HasSubstr("at most"),
                      HasSubstr("expected 1 to"), HasSubstr("one after another")))
        << source.substr(0, 100);
  };
  expect_bound("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  expect_bound(
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
  expect_bound(
      "{% macro a() %}{{ caller() }}{% endmacro %}"
      "{% macro b() %}{% call a() %}{{ b() }}{% endcall %}{% endmacro %}{{ b() }}");
  expect_bound("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
  expect_bound("{{ range(10 ** 12) }}");
  expect_bound("{{ 'a' * 10 ** 12 }}");
  expect_bound("{{ [1] * 10 ** 12 }}");
  expect_bound("{{ 'a' | center(10 ** 12) }}");
  expect_bound("{{ 'a\nb' | indent(10 ** 12) }}");
  expect_bound("{{ [1] | batch(10 ** 12, 0) }}");
  expect_bound("{{ ('a' * 10 ** 5) | replace('a', 'b' * 10 ** 4) }}");
  expect_bound("{{ range(9999) | join('x' * 10 ** 4) }}");
  for (const char* doubled : {"ns.x ~ ns.x", "ns.x + ns.x", "[ns.x, ns.x]", "{'a': ns.x}"}) {
    for (const char* first : {"'a'", "[1]"}) {
      const std::string loop = "{% set ns = namespace(x=" + std::string(first) +
                               ") %}{% for i in range(200) %}{% set ns.x = " + doubled +
                               " %}{% endfor %}{{ ns.x }}";
      if (std::string(first) == "'a'" || std::string(doubled) != "ns.x ~ ns.x") expect_bound(loop);
    }
  }
  expect_bound(
      "{% set ns = namespace(x=[]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x == ns.x }}");
  for (const char* use : {"{ns.x: 1}", "{}.get(ns.x)", "ns.x in {}", "dict([[ns.x, 1]])"}) {
    expect_bound(
        "{% set ns = namespace(x=(1, 1)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}"
        "{% endfor %}{{ " +
        std::string(use) + " }}");
  }
  // Chains of methods and loops, which hold what they are of.
  expect_bound(
      "{% set n = namespace(v=[]) %}{% for i in range(20000) %}{% set n.v = [n.v.index] %}{% "
      "endfor %}");
  expect_bound(
      "{% set n = namespace(v=[]) %}{% for i in range(20000) %}{% for x in [n.v] %}"
      "{% set n.v = [loop] %}{% endfor %}{% endfor %}");
  expect_bound("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  expect_bound("{% for i in range(99) recursive %}{{ loop(range(99)) }}{% endfor %}");
  expect_bound(
      "{% set n = namespace(v=[]) %}{% for i in range(20000) %}{% for x in [1] recursive %}"
      "{% set n.v = [loop, n.v] %}{% endfor %}{% endfor %}");
  expect_bound("{{ ('a ' * 10 ** 6) | wordwrap(1) }}");
  expect_bound("{{ ('\t' * 10 ** 3).expandtabs(10 ** 9) }}");
  expect_bound("{{ ([[1] * 99] * 99) | tojson(indent='a' * 10 ** 4) }}");
  expect_bound("{% for i in range(99999) %}{% set j = joiner('a' * 10 ** 4) %}{% endfor %}");
  // Filters that apply filters.
  expect_bound("{{ 'a' | map(*(['map'] * 20000)) }}");
  expect_bound("{{ range(90000) | map('default', *range(90000)) }}");
  // What is given by names, of each item and for each parameter.
  expect_bound(
      "{% set n = namespace(l=[]) %}{% for i in range(300) %}{% set n.l = n.l + [[i ~ '', 1]] %}"
      "{% endfor %}{% set d = dict(n.l) %}{{ range(9000) | map('default', **d) }}");
  std::string parameters, values;
  for (int i = 0; i < 400; ++i) {
    parameters += fmt::format("p{}, ", i);
    values += fmt::format("'p{}': 1, ", i);
  }
  expect_bound("{% macro f(" + parameters + ") %}{% endmacro %}{% set d = {" + values +
               "} %}{% for i in range(200) %}{{ f(**d) }}{% endfor %}");
  expect_bound("{% set d = {" + values + "} %}{{ ('{p399}' * 9000).format(**d) }}");
  // Formats.
  expect_bound("{{ ('%9999d' * 200) % ((1,) * 200) }}");
  expect_bound("{{ '%99999999999d' % 1 }}");
  expect_bound("{{ '{:.99999999999f}'.format(1) }}");
  expect_bound("{{ 'a'.ljust(10 ** 12) }}{{ 'a'.zfill(10 ** 12) }}");
  expect_bound("{{ [1] | slice(10 ** 12) }}");
  // What is made on the way: where each of a million characters begins.
  expect_bound("{{ ('a' * 10 ** 6)[0] }}");
  // Copies of a long text, and long names of what is not there.
  const std::string long_text = "{% set t = ('a' * 1000) * 1000 %}{% set n = namespace(l=[]) %}";
  for (const char* copy : {"t | string", "t.removeprefix('b')", "t + ''", "t.startswith(t)"}) {
    expect_bound(long_text + "{% for i in range(90000) %}{% set x = " + copy + " %}{% endfor %}");
  }
  EXPECT_EQ(refusal(long_text + "{% for i in range(20) %}{% set n.l = n.l + [n[t]] %}{% endfor %}",
                    {}, limits),
            "");
  EXPECT_LE(refusal(long_text + "{{ n[t].x }}", {}, limits).size(), 200u);
}

// Each holds a text until the one within it is there.
TEST(Jinja, CountsTextsThatAreBeingMade) {
  std::string joined = "t";
  for (int i = 0; i < 20; ++i) joined = "(t ~ " + joined + ") | length";
  const std::string source = "{% set t = 'a' * 500000 %}{{ " + joined + " }}";
  EXPECT_EQ(rendered(source, {}), "500006");
  EXPECT_THAT(refusal(source, {}, {.held_bytes = 8 << 20}), HasSubstr("MiB"));
}

// Twenty thousand times a tuple of a hundred thousand would be copied.
TEST(Jinja, LooksAtATupleWithoutACopy) {
  EXPECT_EQ(rendered("{% set t = ('a',) * 100000 %}{% for i in range(20000) %}"
                     "{% set q = 'a'.startswith(t) %}{% endfor %}",
                     {}),
            "");
}

// What a loop was last asked about is no longer held by it then.
TEST(Jinja, ForgetsWhatALoopWasAskedAbout) {
  const std::string loop = "{% set n = namespace() %}{% for x in [1, 1] %}{% set n.l = loop %}";
  EXPECT_EQ(rendered(loop + "{{ loop.changed(loop) }} {% endfor %}", {}), "True False ");
  EXPECT_THAT(refusal(loop + "{% endfor %}{{ n.l.changed(n.l) }}"), HasSubstr("has ended"));
}

TEST(Jinja, EndsSourcesThatNestWithoutAnEnd) {
  for (const char* part : {"(", "[", "not ", "-", "1 if 1 else ", "{1:", "a[", "f("}) {
    EXPECT_NE(refusal("{{ " + repeated(part, 100'000) + "1 }}"), "") << part;
  }
  for (const char* part : {".a", "|d", "()", "[0]", " if 1"}) {
    EXPECT_NE(refusal("{{ a" + repeated(part, 100'000) + " }}"), "") << part;
  }
  for (const char* part :
       {"{% if 1 %}", "{% for i in [] %}", "{% set a %}", "{% filter upper %}"}) {
    EXPECT_NE(refusal(repeated(part, 100'000)), "") << part;
  }
  EXPECT_NE(refusal("{% if 1 %}" + repeated("{% elif 1 %}", 100'000) + "{% endif %}"), "");
  // Each within its bound, and all of them together not.
  std::string within = "a";
  for (int i = 0; i < 40; ++i) within = "(" + within + ")" + repeated(".b", 90);
  EXPECT_THAT(refusal("{{ " + within + " }}"), HasSubstr("more than 1000 deep"));
  // Chains of operators are no nesting.
  EXPECT_EQ(rendered("{{ 1" + repeated(" + 1", 20'000) + " }}", {}), "20001");
}

// A namespace alone can hold itself, and is never looked into.
TEST(Jinja, HoldsWhatHoldsItself) {
  const std::string itself = "{% set ns = namespace() %}{% set ns.x = [ns] %}";
  EXPECT_EQ(rendered(itself + "{{ ns == ns }}{{ ns.x == ns.x }}{{ ns.x[0].x[0] is defined }}", {}),
            "TrueTrueTrue");
  EXPECT_THAT(refusal(itself + "{{ ns.x | tojson }}"), HasSubstr("Namespace"));
  EXPECT_THAT(refusal(itself + "{{ ns.x }}"), HasSubstr("Namespace"));
}

TEST(Jinja, CountsWithoutOverflow) {
  for (const char* source :
       {"9223372036854775807 + 1", "2 ** 64", "-(-9223372036854775807 - 1)", "1e999",
        "(-9223372036854775807 - 1) // -1", "9223372036854775807 * 2", "99999999999999999999"}) {
    EXPECT_THAT(refusal("{{ " + std::string(source) + " }}"), HasSubstr("too large")) << source;
  }
  EXPECT_EQ(
      rendered("{{ 'abc'[-9223372036854775807 - 1:] }}{{ [1, 2][::9223372036854775807] }}", {}),
      "abc[1]");
  EXPECT_EQ(rendered("{{ 'a b'.rsplit(none, 9223372036854775807) }}", {}), "['a', 'b']");
}

// What Python shows by an address or a start, and numbers that it alone has.
TEST(Jinja, SaysWhatItDoesNotHave) {
  for (const auto& [source, why] :
       {std::pair{"{{ [1] | map('string') }}", "a generator has no text; make a list of it"},
        {"{{ range(3) }}", "a range has no text"},
        {"{{ '99999999999999999999' | int }}", "too large a number"},
        {"{{ ('a' * 99) | pprint }}", "more than a line"},
        {"{{ 'a' | urlize }}", "no filter urlize"},
        {"{% block a %}{% endblock %}", "the tag block is not supported"},
        {"{% include 'a' %}", "the tag include is not supported"}}) {
    EXPECT_THAT(refusal(source), HasSubstr(why)) << source;
  }
}

TEST(Jinja, TellsMicrosecondsAsPythonDoes) {
  const std::string now = rendered("{{ strftime_now('%f %%f') }}", {});
  ASSERT_EQ(now.size(), 9);
  EXPECT_EQ(now.find_first_not_of("0123456789"), 6);
  EXPECT_EQ(now.substr(6), " %f");
}

TEST(ChatTemplate, NamesTheTemplateThatRecursWithoutAnEnd) {
  const std::vector<ChatMessage> many(10'000, {"user", "Hi"});
  const ChatTemplate recursive(
      "{% macro rest(i) %}{% if i < messages | length %}{{ messages[i].content }}"
      "{{ rest(i + 1) }}{% endif %}{% endmacro %}{{ rest(0) }}",
      {}, "chat_template.jinja");
  std::string text;
  for (const ChatPart& part : recursive.parts({many.begin(), many.begin() + 50})) text += part.text;
  EXPECT_EQ(text, repeated("Hi", 50));
  try {
    recursive.parts(many);
    ADD_FAILURE() << "10,000 levels";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("chat_template.jinja, line 1"), HasSubstr("deep")));
  }
  // A loop over as many is no recursion.
  const ChatTemplate looped("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(looped.parts(many).at(0).text.size(), 20'000);
}

// What a user wrote stays known as that through all that a template does with it.
TEST(ChatTemplate, TellsWrittenTextFromTheTemplates) {
  const ChatTemplate chat(
      "{% for m in messages %}<{{ (m.content | trim | upper).split(',')[0][:3] ~ '|' ~ "
      "m.content | replace('x', 'yy') }}>{{ m.content | tojson }}{% endfor %}");
  std::string marked;
  for (const ChatPart& part : chat.parts({{"user", " ab<,x "}})) {
    marked += part.written ? "[" + part.text + "]" : part.text;
  }
  EXPECT_EQ(marked, "<[AB<]|[ ab<,]yy[ ]>\"[ ab<,x ]\"");
}

}  // namespace
}  // namespace attnres::jinja_test
