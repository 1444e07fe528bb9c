#include "attnres/text/hugging_face/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "attnres/text/hugging_face/byte_characters.h"
#include "attnres/text/hugging_face/regex.h"
#include "attnres/text/hugging_face/unicode.h"

namespace attnres {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using Next = FunctionRef<const Piece&>;

// What becomes of the matches of a pattern.
enum class Behavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

Behavior read_behavior(const JsonPart& part) {
  const std::string name = part.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Contiguous") return Behavior::contiguous;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  part.refuse("Removed, Isolated, Contiguous, MergedWithPrevious or MergedWithNext");
}

// Ranges of which each begins where the one before ends, united as the behaviour says.
std::vector<TextRange> united(const std::vector<TextRange>& ranges, Behavior behavior) {
  std::vector<TextRange> pieces;
  bool previous = false;
  const auto add = [&](const TextRange& range, bool joins) {
    if (joins && !pieces.empty()) {
      pieces.back().begin = std::min(pieces.back().begin, range.begin);
      pieces.back().end = std::max(pieces.back().end, range.end);
    } else {
      pieces.push_back(range);
    }
    previous = range.match;
  };
  if (behavior == Behavior::merged_with_next) {
    for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
      add(*range, range->match && !previous);
    }
    std::reverse(pieces.begin(), pieces.end());
  } else {
    for (const TextRange& range : ranges) {
      add(range,
          behavior == Behavior::contiguous ? range.match == previous : range.match && !previous);
    }
  }
  return pieces;
}

// Splits by the ranges that `find_all` finds in the piece.
template <class FindAll>
void split_by(const Piece& piece, Behavior behavior, bool invert, FindAll&& find_all, Next next) {
  const auto give = [&](const TextRange& range) {
    if (range.begin == range.end) return;
    next(Piece{piece.text.substr(range.begin, range.end - range.begin),
               piece.at_start && range.begin == 0});
  };
  if (behavior == Behavior::isolated) {
    find_all(piece.text, give);
  } else if (behavior == Behavior::removed) {
    find_all(piece.text, [&](const TextRange& range) {
      if (range.match == invert) give(range);
    });
  } else {
    std::vector<TextRange> ranges;
    find_all(piece.text, [&](TextRange range) {
      range.match = range.match != invert;
      ranges.push_back(range);
    });
    for (const TextRange& range : united(ranges, behavior)) give(range);
  }
}

class SplitByPattern : public PreTokenizer {
 public:
  SplitByPattern(TextRegex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(const Piece& piece, Next next) const override {
    const auto find_all = [&](std::string_view text, FunctionRef<const TextRange&> found) {
      regex_.find_all(text, found);
    };
    split_by(piece, behavior_, invert_, find_all, next);
  }

 private:
  TextRegex regex_;
  Behavior behavior_;
  bool invert_;
};

std::unique_ptr<PreTokenizer> read_split(const JsonPart& part) {
  const JsonPart pattern = part.at("pattern");
  const JsonPart literal = pattern.at("String");
  return std::make_unique<SplitByPattern>(literal.is_null() ? TextRegex(pattern.at("Regex").text())
                                                            : TextRegex::literal(literal.text()),
                                          read_behavior(part.at("behavior")),
                                          part.at("invert").flag(false));
}

// Splits at characters of a kind, each of which is a match.
class SplitAtCharacters : public PreTokenizer {
 public:
  SplitAtCharacters(bool (*is_one)(int32_t), Behavior behavior)
      : is_one_(is_one), behavior_(behavior) {}

  void split(const Piece& piece, Next next) const override {
    const auto find_all = [&](std::string_view text, FunctionRef<const TextRange&> found) {
      size_t given = 0, at = 0;
      while (at < text.size()) {
        const Character character = first_character(text.substr(at));
        const size_t end = at + character.bytes;
        if (is_one_(character.code)) {
          if (given < at) found(TextRange{given, at, false});
          found(TextRange{at, end, true});
          given = end;
        }
        at = end;
      }
      if (given < at) found(TextRange{given, at, false});
    };
    split_by(piece, behavior_, /*invert=*/false, find_all, next);
  }

 private:
  bool (*is_one_)(int32_t);
  Behavior behavior_;
};

// Runs of word characters, and of what is neither word nor space.
class Whitespace : public PreTokenizer {
 public:
  void split(const Piece& piece, Next next) const override {
    size_t begin = 0, at = 0;
    Kind run = Kind::space;
    const auto end_run = [&] {
      if (run == Kind::space) return;
      next(Piece{piece.text.substr(begin, at - begin), piece.at_start && begin == 0});
    };
    while (at < piece.text.size()) {
      const Character character = first_character(piece.text.substr(at));
      const Kind kind = kind_of(character.code);
      if (kind != run) {
        end_run();
        begin = at;
        run = kind;
      }
      at += character.bytes;
    }
    end_run();
  }

 private:
  enum class Kind { space, word, other };
  static Kind kind_of(int32_t code) {
    if (is_word_character(code)) return Kind::word;
    return is_whitespace(code) ? Kind::space : Kind::other;
  }
};

class ByteLevel : public PreTokenizer {
 public:
  // `writes_bytes`: whether pieces are given with GPT-2's characters for their bytes.
  ByteLevel(const JsonPart& part, bool writes_bytes)
      : adds_space_(part.at("add_prefix_space").flag(true)), writes_bytes_(writes_bytes) {
    if (part.at("use_regex").flag(true)) regex_.emplace(kGpt2Pattern);
  }

  void split(const Piece& piece, Next next) const override {
    if (adds_space_ && !piece.text.starts_with(' ')) {
      const std::string spaced = fmt::format(" {}", piece.text);
      split_words({spaced, piece.at_start}, next);
    } else {
      split_words(piece, next);
    }
  }

 private:
  void split_words(const Piece& piece, Next next) const {
    const auto give = [&](const TextRange& range) {
      if (range.begin == range.end) return;
      const std::string_view word = piece.text.substr(range.begin, range.end - range.begin);
      const bool at_start = piece.at_start && range.begin == 0;
      if (writes_bytes_) {
        next(Piece{as_byte_characters(word), at_start});
      } else {
        next(Piece{word, at_start});
      }
    };
    if (regex_) {
      regex_->find_all(piece.text, give);
    } else {
      give(TextRange{0, piece.text.size(), false});
    }
  }

  bool adds_space_, writes_bytes_;
  std::optional<TextRegex> regex_;
};

// Spaces as another character, which begins each piece.
class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const JsonPart& part)
      : mark_(part.at("replacement").text()), splits_(part.at("split").flag(true)) {
    if (mark_.empty() || first_character(mark_).bytes != mark_.size()) {
      part.at("replacement").refuse("one character");
    }
    const JsonPart scheme = part.at("prepend_scheme");
    const std::string name = scheme.is_null() ? "always" : scheme.text();
    if (name != "always" && name != "first" && name != "never") {
      scheme.refuse("always, first or never");
    }
    if (!part.at("add_prefix_space").flag(true) || name == "never") {
      begins_ = Begins::never;
    } else {
      begins_ = name == "first" ? Begins::first : Begins::always;
    }
  }

  void split(const Piece& piece, Next next) const override {
    std::string marked;
    for (const char c : piece.text) {
      if (c == ' ') {
        marked += mark_;
      } else {
        marked += c;
      }
    }
    const bool begins = begins_ == Begins::always || (begins_ == Begins::first && piece.at_start);
    if (begins && !marked.starts_with(mark_)) marked.insert(0, mark_);
    const Piece whole = {marked, piece.at_start};
    if (!splits_) return next(whole);
    size_t begin = 0;
    while (begin < marked.size()) {
      const size_t end = std::min(marked.find(mark_, begin + 1), marked.size());
      next(
          Piece{std::string_view(marked).substr(begin, end - begin), piece.at_start && begin == 0});
      begin = end;
    }
  }

 private:
  enum class Begins { always, first, never };
  std::string mark_;
  bool splits_;
  Begins begins_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  void split(const Piece& piece, Next next) const override { run(0, piece, next); }

 private:
  void run(size_t step, const Piece& piece, Next next) const {
    if (step == steps_.size()) return next(piece);
    const auto go_on = [&](const Piece& part) { run(step + 1, part, next); };
    steps_[step]->split(piece, go_on);
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

PreTokenization read_step(const JsonPart& part, bool is_last);

PreTokenization read_sequence(const JsonPart& part, bool is_last) {
  const std::vector<JsonPart> parts = part.at("pretokenizers").list();
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  bool bytes = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    PreTokenization step = read_step(parts[i], is_last && i + 1 == parts.size());
    bytes = bytes || step.bytes;
    steps.push_back(std::move(step.splitter));
  }
  return {std::make_unique<PreTokenizerSequence>(std::move(steps)), bytes};
}

PreTokenization read_step(const JsonPart& part, bool is_last) {
  const std::string type = part.type();
  if (type == "ByteLevel") return {std::make_unique<ByteLevel>(part, !is_last), is_last};
  if (type == "Sequence") return read_sequence(part, is_last);
  std::unique_ptr<PreTokenizer> step;
  if (type == "Split") step = read_split(part);
  if (type == "Whitespace") step = std::make_unique<Whitespace>();
  if (type == "Metaspace") step = std::make_unique<Metaspace>(part);
  if (type == "WhitespaceSplit") {
    step = std::make_unique<SplitAtCharacters>(is_whitespace, Behavior::removed);
  }
  if (type == "Punctuation") {
    const JsonPart behavior = part.at("behavior");
    step = std::make_unique<SplitAtCharacters>(
        is_punctuation, behavior.is_null() ? Behavior::isolated : read_behavior(behavior));
  }
  if (type == "Digits") {
    const bool each = part.at("individual_digits").flag();
    step = std::make_unique<SplitAtCharacters>(is_numeric,
                                               each ? Behavior::isolated : Behavior::contiguous);
  }
  if (step == nullptr) {
    part.at("type").refuse(
        "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace or "
        "Sequence");
  }
  return {std::move(step), false};
}

}  // namespace

PreTokenization read_pre_tokenizer(const JsonPart& part) {
  if (part.is_null()) return {};
  return read_step(part, /*is_last=*/true);
}

}  // namespace attnres
