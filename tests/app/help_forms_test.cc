// Man pages, completions and docs/commands.md against what --help shows, and in the programs that
// read them.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "attnres/support/shell.h"
#include "tests/app/program.h"

namespace attnres::testing::help_forms_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::set<std::string>;

std::string printed(const std::string& arguments) {
  const Result result = run_shell("export COLUMNS=80; attnres " + arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

// The first group of every match.
Words all_matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern, std::regex::ECMAScript | std::regex::multiline);
  Words words;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    words.insert((*match)[1]);
  }
  return words;
}

Words words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

Words commands() {
  return all_matches(printed("--help"), "^  ([a-z]+) {2,}[A-Z]");
}

Words long_options(const std::string& command) {
  return all_matches(printed(command + " --help"), "^  (?:-[a-z], )?(--[a-z-]+)");
}

// What stands between two texts; to the end where `end` is not there.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t found = text.find(begin);
  EXPECT_NE(found, std::string::npos) << begin;
  const std::string rest = found == std::string::npos ? "" : text.substr(found + begin.size());
  return rest.substr(0, rest.find(end));
}

bool has_program(const std::string& name) {
  return run_shell("command -v " + name).exit_code == 0;
}

TEST(HelpForms, OverviewFitsOnAScreen) {
  const std::string overview = printed("--help");
  EXPECT_LE(std::count(overview.begin(), overview.end(), '\n'), 38);
  std::istringstream lines(overview);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  // Each command has one line, in one of the groups.
  EXPECT_EQ(commands().size(), 21u);
  EXPECT_EQ(all_matches(overview, "^([A-Z][A-Za-z ,]+):$").size(), 8u);  // "Begin with" too
  EXPECT_THAT(overview, HasSubstr("\nUsage: attnres COMMAND [options]"));
  EXPECT_LT(overview.find("\nTrain:"), overview.find("\nCheck implementations:"));
}

TEST(HelpForms, PageIsWhatTheProgramPrints) {
  EXPECT_EQ(printed("help --markdown"),
            read_file(std::string(ATTNRES_SOURCE_DIR) + "/docs/commands.md"))
      << "write it again: attnres help --markdown > docs/commands.md";
}

TEST(HelpForms, UsageNamesWhatMustBeGiven) {
  EXPECT_THAT(printed("import --help"),
              HasSubstr("\nUsage: attnres import --from PATH --out DIR [options]\n"));
  EXPECT_THAT(printed("report --help"), HasSubstr("\nUsage: attnres report RUN... [options]\n"));
  EXPECT_THAT(printed("study --help"), HasSubstr("\nUsage: attnres study [STUDY] [options]\n"));
  EXPECT_THAT(printed("generate --help"),
              AllOf(HasSubstr("(default: 200)"), HasSubstr("\nSampling:\n")));
}

TEST(HelpForms, HaveEveryOption) {
  const fs::path folder = fresh_folder("man");
  printed("help --man " + folder.string());
  const std::string page = printed("help --markdown"), bash = printed("help --completion bash"),
                    zsh = printed("help --completion zsh"),
                    fish = printed("help --completion fish");
  const Words known = commands();
  for (const std::string& command : known) {
    SCOPED_TRACE(command);
    const Words options = long_options(command);
    EXPECT_THAT(options, ::testing::Contains("--help"));

    Words in_man;
    const std::string man = read_file(folder / fmt::format("attnres-{}.1", command));
    for (const std::string& escaped : all_matches(man, R"(^\\fB.*?(\\-\\-[a-z\\-]+)\\fR)")) {
      in_man.insert(std::regex_replace(escaped, std::regex(R"(\\-)"), "-"));
    }
    EXPECT_EQ(in_man, options);

    const std::string section = between(page, "\n### attnres " + command + "\n", "\n### ");
    EXPECT_EQ(all_matches(section, R"(^\| `(?:-[a-z], )?(--[a-z-]+))"), options);

    Words in_bash = words_of(between(bash, fmt::format("\n  [{}]='", command), "'"));
    EXPECT_EQ(in_bash.erase("-h"), 1u);
    EXPECT_EQ(in_bash, options);

    const std::string zsh_case = between(zsh, fmt::format("\n    ({})\n", command), "\n      ;;");
    EXPECT_EQ(all_matches(zsh_case, R"(^ +'\*?(--[a-z-]+)=?\[)"), options);

    Words in_fish;
    for (const std::string& name :
         all_matches(fish, fmt::format("-n '__attnres_command {}' .*-l ([a-z-]+) ", command))) {
      in_fish.insert("--" + name);
    }
    EXPECT_EQ(in_fish, options);
  }
  for (const std::string& command : known) {
    EXPECT_THAT(read_file(folder / "attnres.1"), HasSubstr("\\fBattnres\\-" + command + "\\fR(1)"));
    EXPECT_THAT(page, HasSubstr(fmt::format("| [{0}](#attnres-{0}) | ", command)));
  }
}

TEST(HelpForms, OneIsWrittenAtATime) {
  for (const char* arguments : {"help train --markdown", "help --markdown --completion zsh",
                                "help --completion csh", "help --man ''"}) {
    EXPECT_EQ(run_program(arguments).exit_code, 2) << arguments;
  }
  EXPECT_THAT(run_program("help --completion csh").err, HasSubstr("bash, zsh, fish, got csh"));
  EXPECT_EQ(run_program("help --man /dev/null/man").exit_code, 1);
}

TEST(ManPages, HaveNoWarnings) {
  if (!has_program("man") || !has_program("groff")) GTEST_SKIP() << "no man to read them";
  const fs::path folder = fresh_folder("man");
  printed("help --man " + folder.string());
  const auto read = [](const fs::path& page) {
    return run_shell("LC_ALL=C.UTF-8 MANROFFSEQ= MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 '" +
                     page.string() + "'");
  };
  for (const auto& page : fs::directory_iterator(folder)) {
    SCOPED_TRACE(page.path().string());
    const Result shown = read(page);
    EXPECT_EQ(shown.exit_code, 0);
    EXPECT_EQ(shown.err, "");
    const std::string name = page.path().stem();
    EXPECT_THAT(run_shell("lexgrog '" + page.path().string() + "'").out,
                HasSubstr(name + " - "));  // what apropos finds
  }
  // Bold letters are struck twice.
  const std::string shown =
      std::regex_replace(read(folder / "attnres-generate.1").out, std::regex(".\x08"), "");
  EXPECT_THAT(shown, AllOf(HasSubstr("--logit-bias ID=NUMBER"),
                           HasSubstr("attnres generate --model runs/tiny --chat")));
  write_text(folder / "broken.1", ".TH BROKEN 1\n.SH NAME\nbroken \\- \\(xyzzy\n.nosuch\n");
  EXPECT_NE(read(folder / "broken.1").err, "");
}

// What bash offers for a line of these words, of which the last is completed.
class BashCompletion : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_program("bash")) GTEST_SKIP() << "no bash";
    write_text(script_, printed("help --completion bash"));
  }

  Words completed(const std::vector<std::string>& words) const {
    std::string line;
    for (const std::string& word : words) line += " " + shell_quoted(word);
    write_text(folder_ / "test",
               fmt::format("set -u\nsource '{}'\nCOMP_WORDS=(attnres{})\n"
                           "COMP_CWORD={}\n_attnres\necho \"${{COMPREPLY[*]}}\"\n",
                           script_.string(), line, words.size()));
    const Result result = run_shell("bash '" + (folder_ / "test").string() + "'");
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    return words_of(result.out);
  }

  // What a person has before them who types this, tabs as \t, in a folder with some files: the
  // arguments that attnres is then given, each in <>.
  std::string typed(const std::string& line) const {
    const fs::path here = folder_ / "here";
    fs::create_directories(here / "my folder");
    write_text(here / "my file", "");
    write_text(here / "a=b, it's.txt", "");
    write_text(folder_ / "input", fmt::format("source '{}'\nattnres() {{ printf '<%s>' \"$@\"; }}\n"
                                              "cd '{}'\n{}\nexit\n",
                                              script_.string(), here.string(), line));
    const Result result = run_shell(
        fmt::format("TERM=dumb INPUTRC=/dev/null script -qec 'bash --norc --noprofile -i' "
                    "/dev/null <'{}'",
                    (folder_ / "input").string()));
    const size_t begin = result.out.rfind("\n<");
    EXPECT_NE(begin, std::string::npos) << result.out << result.err;
    return result.out.substr(begin + 1, result.out.rfind('>') - begin);
  }

  const fs::path folder_ = fresh_folder("bash"), script_ = folder_ / "attnres";
};

TEST_F(BashCompletion, KnowsCommandsAndOptions) {
  EXPECT_EQ(completed({"tr"}), Words{"train"});
  EXPECT_EQ(completed({"--v"}), Words{"--version"});
  EXPECT_EQ(completed({""}).size(), commands().size() + 2);
  EXPECT_EQ(completed({"train", "--re"}), (Words{"--recipe", "--restarts", "--resume"}));
  EXPECT_EQ(completed({"train", "--data", "a", "b", "--vali"}), Words{"--validation"});
  EXPECT_EQ(completed({"help", "diag"}), Words{"diagnose"});
  EXPECT_THAT(completed({"nosuch", "--"}), IsEmpty());
  EXPECT_THAT(completed({"nosuch", ""}), IsEmpty());
}

TEST_F(BashCompletion, KnowsValues) {
  EXPECT_EQ(completed({"export", "--type", "q"}),
            (Words{"q4_0", "q4_k_m", "q4_k_s", "q5_k_m", "q6_k", "q8_0"}));
  EXPECT_EQ(completed({"export", "--type", "=", "q8"}), Words{"q8_0"});
  EXPECT_EQ(completed({"export", "--format", "="}), (Words{"gguf", "huggingface", "safetensors"}));
  EXPECT_EQ(completed({"eval", "--device", ""}), (Words{"cpu", "cuda"}));
  // What has its value leaves room for options.
  EXPECT_THAT(completed({"export", "--type", "q8_0", ""}), ::testing::Contains("--model"));
  EXPECT_EQ(completed({"train", "--recipe", "tiny-"}),
            (Words{"tiny-block-attn-res", "tiny-residual"}));
  EXPECT_EQ(completed({"study", "block"}), Words{"block-size"});
  EXPECT_EQ(completed({"mechanisms", "mhc"}), (Words{"mhc", "mhc_lite"}));
  EXPECT_EQ(completed({"compare", "--mechanisms", "residual,mhc_"}), Words{"residual,mhc_lite"});
  EXPECT_EQ(completed({"vectors", "--mechanism", "mhc", "rezer"}), Words{"rezero"});
  EXPECT_THAT(completed({"generate", "--prompt", ""}), IsEmpty());
  EXPECT_THAT(completed({"train", "--set", "model."}), IsEmpty());
}

TEST_F(BashCompletion, LeavesFilesToReadline) {
  if (!has_program("script")) GTEST_SKIP() << "no script to type with";
  EXPECT_EQ(typed("attnres train --out my\t"), "<train><--out><my folder/>");
  EXPECT_EQ(typed("attnres train --out=my\t"), "<train><--out=my folder/>");
  EXPECT_EQ(typed("attnres eval --data my\\ fi\t"), "<eval><--data><my file>");
  EXPECT_EQ(typed("attnres eval --data x a\t"), "<eval><--data><x><a=b, it's.txt>");
  EXPECT_EQ(typed("attnres eval --prec\tbf\t"), "<eval><--precision><bfloat16>");
  EXPECT_EQ(typed("attnres generate --prompt my\t"), "<generate><--prompt><my>");
}

TEST(FishCompletion, OffersCommandsOptionsAndValues) {
  if (!has_program("fish")) GTEST_SKIP() << "no fish";
  const fs::path script = fresh_folder("fish") / "attnres.fish";
  write_text(script, printed("help --completion fish"));
  const auto completed = [&](const std::string& line) {
    const Result result = run_shell(fmt::format(
        "fish --no-config -c 'source {}; complete -C \"{}\"' | cut -f1", script.string(), line));
    EXPECT_EQ(result.err, "");
    return words_of(result.out);
  };
  EXPECT_EQ(completed("attnres tra"), Words{"train"});
  EXPECT_EQ(completed("attnres train --re"), (Words{"--recipe", "--restarts", "--resume"}));
  EXPECT_EQ(completed("attnres export --type q"),
            (Words{"q4_0", "q4_k_m", "q4_k_s", "q5_k_m", "q6_k", "q8_0"}));
  EXPECT_EQ(completed("attnres export --type=q"), (Words{"--type=q4_0", "--type=q8_0"}));
  EXPECT_EQ(completed("attnres compare --mechanisms residual,mhc_"), Words{"residual,mhc_lite"});
  EXPECT_EQ(completed("attnres vectors --mechanism mhc rezer"), Words{"rezero"});
}

TEST(ZshCompletion, IsAScript) {
  if (!has_program("zsh")) GTEST_SKIP() << "no zsh";
  const fs::path script = fresh_folder("zsh") / "_attnres";
  write_text(script, printed("help --completion zsh"));
  const Result result = run_shell("zsh -n '" + script.string() + "'");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace attnres::testing::help_forms_test
