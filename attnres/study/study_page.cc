#include "attnres/study/study_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/report/arm_table.h"
#include "attnres/report/settings.h"
#include "attnres/report/speed.h"
#include "attnres/study/quick_study.h"
#include "attnres/study/seed_curves.h"
#include "attnres/study/study_figures.h"
#include "attnres/study/trained_box.h"
#include "attnres/study/tuning_section.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/shell.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr size_t kLongList = 12;  // longer ones are folded
constexpr size_t kMostCurves = 12;

constexpr const char* kSmokeBanner =
    "<aside class=\"banner\"><h2>Smoke test</h2><p>Every run was tiny: this page shows that all of "
    "it works. It says nothing of how the arms compare, or of what they cost; the same command "
    "without --smoke, in another folder, does.</p></aside>\n";

int64_t runs_in_state(const StudyRecord& study, RunState state) {
  return std::count_if(study.runs.begin(), study.runs.end(),
                       [&](const StudyRunRecord& run) { return run.state == state; });
}

// In words of a page.
const char* state_words(RunState state) {
  return state == RunState::missing ? "to come" : name_of(state);
}

std::string progress_sentence(const StudyRecord& study) {
  std::string text = fmt::format("{} of {} done", runs_in_state(study, RunState::done),
                                 counted(std::ssize(study.runs), "run"));
  for (const RunState state : {RunState::failed, RunState::diverged, RunState::unfinished,
                               RunState::missing, RunState::waiting}) {
    const int64_t count = runs_in_state(study, state);
    if (count > 0) text += fmt::format(", {} {}", count, state_words(state));
  }
  return text + ".";
}

bool is_going_on(const StudyRecord& study) {
  return runs_in_state(study, RunState::waiting) + runs_in_state(study, RunState::missing) +
             runs_in_state(study, RunState::unfinished) >
         0;
}

// "p = 0.012", "p < 0.001", with spaces that do not break.
std::string p_text(double p) {
  constexpr const char* kSpace = "\u00a0";
  return fmt::format("p{}{}{}{:.3f}", kSpace, p < 0.001 ? "<" : "=", kSpace, std::max(p, 0.001));
}

// How an arm compares, in plain text; empty where it has no difference.
std::string arm_sentence(const StudyArms& all, size_t i) {
  const Arm& arm = all.arms[i];
  const ArmDifference& difference = arm.difference;
  const Arm& baseline = all.arms[*all.baselines[i]];
  if (difference.pairs == 0) return "";
  if (!difference.test) {
    return fmt::format("{} ends {} from {} with one seed, which cannot tell: repeat with others.",
                       arm.label, format_loss(difference.mean, true), baseline.label);
  }
  const Interval& interval = difference.test->interval;
  const bool is_told = difference.p_value < kSignificance;
  std::string text =
      fmt::format("{} is {} {} {}: {} (95 % interval {} to {}, {}) over {} seeds.", arm.label,
                  difference.verdict, is_told ? "than" : "from", baseline.label,
                  format_loss(difference.mean, true), format_loss(interval.low, true),
                  format_loss(interval.high, true), p_text(difference.p_value), difference.pairs);
  if (!is_told) {
    text += fmt::format(" About {} seeds would tell a difference of {}.",
                        format_whole(static_cast<int64_t>(*difference.pairs_to_tell)),
                        kDifferenceToTell);
  }
  return text;
}

std::vector<std::string> seen_sentences(const StudyArms& all) {
  std::vector<std::string> sentences;
  for (size_t i = 0; i < all.arms.size(); ++i) {
    if (!all.baselines[i] || all.baselines[i] == i) continue;
    const std::string sentence = arm_sentence(all, i);
    if (!sentence.empty()) sentences.push_back(sentence);
  }
  return sentences;
}

std::string folded(const std::string& summary, const std::string& body) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", summary, body);
}

std::string list_of(const std::vector<std::string>& sentences) {
  std::string items;
  for (const std::string& sentence : sentences) items += "<li>" + escape_html(sentence) + "</li>\n";
  return "<ul class=\"seen\">\n" + items + "</ul>\n";
}

std::string seen_list(const StudyData& data, const std::vector<std::string>& sentences) {
  if (sentences.empty()) {
    return nothing(
        data.arms.baseline_axis.empty()
            ? "This study names no baseline, so that nothing is compared."
            : "Nothing can be compared yet: no seed of an arm and of its baseline is done.");
  }
  const std::string items = list_of(sentences);
  if (sentences.size() <= kLongList) return items;
  std::map<std::string, int64_t> verdicts;
  for (const Arm& arm : data.arms.arms) ++verdicts[arm.difference.verdict];
  std::string counts;
  for (const char* verdict : {"better", "worse", "not distinguishable"}) {
    if (verdicts[verdict] == 0) continue;
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", verdicts[verdict], verdict);
  }
  return fmt::format("<p>Of {} compared with the baseline: {}.</p>\n",
                     counted(std::ssize(sentences), "arm"),
                     counts.empty() ? "none tested" : counts) +
         folded("Each in a sentence", items);
}

// Nothing where the study has none.
std::string claim(const StudyRecord& study) {
  if (study.claim.empty()) return "";
  return "<h3>What the report claims</h3>\n<p>" + escape_html(study.claim) + "</p>\n";
}

std::string seen(const StudyData& data, const StudyPage& page) {
  std::string out = claim(data.study) + "<h3>What we saw</h3>\n";
  if (!page.findings.empty()) out += list_of(page.findings);
  out += seen_list(data, page.sentences);
  if (!page.sentences.empty()) {
    out += how_to_read(
        "Differences of final validation losses in nats per token, seed by seed; negative is "
        "lower. p by Holm’s correction for all arms of the table.");
  }
  return out + (page.costs.empty() ? "" : list_of(page.costs));
}

std::string count_or_none(double count) {
  return count > 0 ? format_count(count) : kNoValue;
}

// Whether no run of an arm has come to an end, a bad one or not.
bool is_to_come(const StudyRecord& study, const Arm& arm) {
  return std::none_of(arm.runs.begin(), arm.runs.end(), [&](size_t run) {
    return study.runs[run].has_ended() || study.runs[run].state == RunState::failed;
  });
}

std::string arm_section_of_study(const StudyData& data) {
  StudyArms all = data.arms;
  const auto to_come =
      std::erase_if(all.arms, [&](const Arm& arm) { return is_to_come(data.study, arm); });
  std::vector<std::string> headings;
  TableColumn parameters{"parameters", {}};
  std::vector<bool> better;
  for (const Arm& arm : all.arms) {
    headings.push_back(row_heading(arm.label));
    better.push_back(arm.difference.verdict == "better");
    parameters.cells.push_back(
        count_or_none(static_cast<double>(data.study.runs[arm.runs.front()].parameters)));
  }
  std::vector<TableColumn> columns = arm_columns(all.arms);
  columns.push_back(parameters);
  const std::string baseline =
      all.baseline_label.empty() ? "" : all.baseline_label + " with all else equal";
  const std::string rest = to_come > 0 ? fmt::format(" Not in it: {} of which no run is done yet.",
                                                     counted(static_cast<int64_t>(to_come), "arm"))
                                       : "";
  return section("arms", "Arms",
                 numbers_table("arm", headings, escaped(columns), better) +
                     how_to_read(escape_html(arm_table_key(baseline)) +
                                 " Marked: better than the baseline." + rest));
}

// Curves of arms that are few enough to be told apart.
std::string loss_section(const StudyData& data) {
  const std::vector<size_t> arms = data.shown_arms();
  if (arms.empty() || arms.size() > kMostCurves) return "";
  return section("loss", "Loss", seed_loss_figures(data, arms));
}

// " --data 'a' 'b'"; empty where there are none.
std::string texts_option(const char* name, const std::vector<std::string>& texts) {
  std::string option;
  for (const std::string& text : texts) option.append(" ").append(shell_quoted(text));
  return option.empty() ? "" : fmt::format(" {}{}", name, option);
}

// Where the weights are that a run begins with: another run's, or those turned for it.
std::string from_option(const StudyData& data, const StudyRunRecord& run) {
  if (run.from.empty()) return "";
  const bool turned = fs::is_directory(data.folder / "starts" / run.name);
  return " --from " + shell_quoted(turned ? "starts/" + run.name : "runs/" + run.from);
}

std::string run_commands(const StudyData& data) {
  const std::string machine =
      (data.study.threads > 0 ? fmt::format(" --threads {}", data.study.threads) : "") +
      (data.study.device != "cpu" ? " --device " + shell_quoted(data.study.device) : "");
  const std::string texts =
      texts_option("--data", data.study.data) + texts_option("--validation", data.study.validation);
  std::string lines;
  for (const StudyRunRecord& run : data.study.runs) {
    lines += fmt::format("attnres train --recipe {} --out {}{}{}{}\n",
                         shell_quoted("recipes/" + run.name + ".json"),
                         shell_quoted("again/" + run.name), from_option(data, run), machine, texts);
  }
  return folded("Commands that repeat each run, in the study’s folder",
                "<pre>" + escape_html(lines) + "</pre>\n");
}

std::string run_table(const StudyData& data) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {{"state", {}, true}, {"step", {}},     {"final loss", {}},
                                      {"tokens", {}},      {"tokens/s", {}}, {"time", {}}};
  if (data.study.smoke) columns.resize(2);
  for (const StudyRunRecord& run : data.study.runs) {
    headings.push_back(row_heading(run.name));
    const std::string cells[] = {
        state_words(run.state),
        fmt::format("{}/{}", run.step, run.steps),
        std::isnan(run.final_val_loss) ? kNoValue : format_loss(run.final_val_loss),
        count_or_none(run.tokens),
        run.seconds > 0 ? count_or_none(run.tokens / run.seconds) : kNoValue,
        run.seconds > 0 ? format_duration(run.seconds) : kNoValue};
    for (size_t c = 0; c < columns.size(); ++c) columns[c].cells.push_back(cells[c]);
  }
  return numbers_table("run", headings, columns);
}

std::string run_section(const StudyData& data) {
  std::string errors;
  for (const StudyRunRecord& run : data.study.runs) {
    if (run.error.empty()) continue;
    errors +=
        fmt::format("<li><bdi>{}</bdi>: {}</li>\n", escape_html(run.name), escape_html(run.error));
  }
  if (!errors.empty()) errors = "<h3>Why runs failed</h3>\n<ul>" + errors + "</ul>\n";
  const std::string table = run_table(data);
  const bool is_long = data.study.runs.size() > kLongList;
  return section(
      "runs", "Runs",
      errors + (is_long ? folded(fmt::format("{} runs", data.study.runs.size()), table) : table) +
          run_commands(data));
}

// Rows are arms, columns the settings in which they differ.
std::string settings_section(const StudyData& data) {
  std::vector<std::string> headings;
  std::vector<const RunData*> runs;
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    const auto run = data.shown_run(arm);
    if (!run) continue;
    runs.push_back(&*data.runs[*run]);
    headings.push_back(row_heading(data.arms.arms[arm].label));
  }
  SettingsTable settings(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (const Json* recipe = find(runs[i]->record, "/recipe")) settings.add(i, "", *recipe);
  }
  std::vector<TableColumn> columns;
  for (const std::string& name : settings.keys()) {
    if (settings.equal(name) || name == "name" || name == "train.seed") continue;
    TableColumn& column = columns.emplace_back(TableColumn{escape_html(name), {}, true});
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string* value = settings.value(i, name);
      column.cells.push_back(value ? escape_html(*value) : kNoValue);
    }
  }
  if (columns.empty()) return "";
  return section("settings", "Settings that differ", numbers_table("arm", headings, columns));
}

// What all runs have together; where they differ, each value that there is.
std::string environment_section(const StudyData& data) {
  std::vector<const RunData*> runs;
  for (const auto& run : data.runs) {
    if (run) runs.push_back(&*run);
  }
  SettingsTable settings(runs.size());
  for (const char* part : {"data", "build", "machine"}) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const Json* value = find(runs[i]->record, std::string("/") + part);
      if (value) settings.add(i, part, *value);
    }
  }
  std::string rows;
  for (const std::string& name : settings.keys()) {
    std::string values;
    for (const std::string& value : settings.values(name)) {
      values += (values.empty() ? "" : "<br>") + escape_html(value);
    }
    rows += fmt::format("<tr><th scope=\"row\"><code>{}</code></th><td>{}</td></tr>\n",
                        escape_html(name), values);
  }
  if (rows.empty()) return "";
  return section("environment", "Data, build, machine",
                 "<div class=\"wide\"><table class=\"settings\"><tbody>\n" + rows +
                     "</tbody></table></div>\n" +
                     how_to_read("A setting with several values: runs differ in it."));
}

// How often a run goes over its text; NaN where its folder does not say.
double passes_over_text(const StudyRunRecord& run, const RunData& folder) {
  return run.tokens / measured_at(find(folder.record, "/data/train_tokens"));
}

std::string caution_of_repeated_text(const StudyData& data) {
  RepeatedText repeated;
  for (size_t i = 0; i < data.runs.size(); ++i) {
    const StudyRunRecord& run = data.study.runs[i];
    if (data.runs[i] && !run.is_trial) repeated.see(passes_over_text(run, *data.runs[i]));
  }
  if (repeated.runs == 0) return "";
  std::string caution = fmt::format(
      "{} (at most {:.1f}). What is read again teaches less, so losses fall more slowly "
      "with tokens and compute than they would on a larger text.",
      repeated.sentence(), repeated.most);
  caution[0] = static_cast<char>(std::toupper(caution[0]));
  return caution;
}

// Machines and builds whose runs do not make pairs, and too little text.
std::vector<std::string> study_cautions(const StudyData& data) {
  std::vector<std::string> cautions;
  for (const char* part : {"/machine", "/build", "/data/hash"}) {
    std::set<std::string> values;
    for (const auto& run : data.runs) {
      const Json* value = run ? find(run->record, part) : nullptr;
      if (value) values.insert(value->dump());
    }
    if (values.size() < 2) continue;
    cautions.push_back(fmt::format(
        "Runs differ in {}: what separates arms may be that. See the end of the page.", part + 1));
  }
  if (std::string repeated = caution_of_repeated_text(data); !repeated.empty()) {
    cautions.push_back(std::move(repeated));
  }
  return cautions;
}

std::string notes_section(const std::vector<std::string>& notes) {
  if (notes.empty()) return "";
  std::string items;
  for (const std::string& note : notes) items += "<li>" + escape_html(note) + "</li>\n";
  items = "<ul class=\"notes\">\n" + items + "</ul>\n";
  return section(
      "notes", "Notes",
      notes.size() > kLongList ? folded(counted(std::ssize(notes), "note"), items) : items);
}

// What run folders lack, of runs that are done.
std::vector<std::string> study_notes(const StudyData& data) {
  std::vector<std::string> notes = data.notes;
  for (size_t i = 0; i < data.runs.size(); ++i) {
    if (!data.runs[i] || !data.study.runs[i].is_done()) continue;
    for (const std::string& note : data.runs[i]->notes) {
      if (note == "no samples.jsonl") continue;  // studies need none
      notes.push_back(data.study.runs[i].name + ": " + note);
    }
  }
  return notes;
}

// What a figure would say of runs that are tiny: how arms compare, and what they cost.
bool compares(const Json& figure) {
  const Json* kind = find(figure, "/kind");
  const bool shows = kind && (*kind == "dynamics" || *kind == "depth_weights" ||
                              *kind == "matrices" || *kind == "probes");
  return !shows;
}

// "compare: book.txt": the name, and the texts that were given.
std::string title_of(const StudyRecord& study) {
  constexpr size_t kMostTexts = 3;
  std::string title = study.name;
  for (size_t i = 0; i < std::min(study.data.size(), kMostTexts); ++i) {
    title += (i ? ", " : ": ") + fs::path(study.data[i]).filename().string();
  }
  const size_t more = study.data.size() - std::min(study.data.size(), kMostTexts);
  return title + (more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string study_page_text(const StudyData& data, const StudyPage& page,
                            const std::string& figures) {
  const StudyRecord& study = data.study;
  std::string under = fmt::format("<p class=\"verdict\">{}</p>\n", escape_html(study.question));
  under += fmt::format("<p class=\"progress\">{}</p>\n", escape_html(page.progress));
  const std::string title = title_of(study);
  std::string out =
      page_start("attnres study: " + title, "<bdi>" + escape_html(title) + "</bdi>", under,
                 is_going_on(study) ? "<meta http-equiv=\"refresh\" content=\"60\">\n" : "");
  if (study.smoke) {
    out += kSmokeBanner + claim(study);
  } else {
    out += trained_box(data) + boxed_list("Read with care", study_cautions(data)) +
           section("seen", study.claim.empty() ? "Result" : "Claim and result", seen(data, page));
  }
  out += figures;
  if (!study.smoke) out += arm_section_of_study(data);
  return out + loss_section(data) + tuning_section(data) + run_section(data) +
         settings_section(data) + environment_section(data) + notes_section(page.notes) +
         page_end();
}

}  // namespace

StudyPage write_study_page(const fs::path& folder, const fs::path& out) {
  const StudyData data = read_study_data(folder);
  StudyPage page{.page = out.empty() ? folder / "report.html" : out,
                 .progress = progress_sentence(data.study),
                 .findings = {},
                 .sentences = seen_sentences(data.arms),
                 .costs = {},
                 .arms = data.arms.arms,
                 .notes = study_notes(data)};
  std::string figures;
  for (size_t i = 0; i < data.study.figures.size(); ++i) {
    if (data.study.smoke && compares(data.study.figures[i])) continue;
    StudyFigure made = study_figure(data, data.study.figures[i], fmt::format("figure{}", i + 1));
    figures += made.html;
    std::move(made.findings.begin(), made.findings.end(), std::back_inserter(page.findings));
    std::move(made.costs.begin(), made.costs.end(), std::back_inserter(page.costs));
  }
  if (data.study.smoke) {
    for (auto* said : {&page.findings, &page.sentences, &page.costs}) said->clear();
  }
  const std::string text = study_page_text(data, page, figures);
  if (page.page.has_parent_path()) make_folder(page.page.parent_path());
  rewrite_file(page.page, text);
  return page;
}

}  // namespace attnres
