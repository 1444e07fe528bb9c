// The filter wordwrap: paragraphs as Python's textwrap fills their lines, but that several hyphens
// in a row are none.
#include <unicode/uchar.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

struct WrapStyle {
  size_t width;
  bool breaks_words, breaks_at_hyphens;
};

// One line of the text, whose places are those of characters.
class Wrapped {
 public:
  Wrapped(const Text& text, const WrapStyle& style)
      : text_(text), style_(style), offsets_(character_offsets(text.bytes())) {}

  void add_lines(Values* lines) {
    const size_t before = lines->size();
    Pieces pieces = all_pieces();
    for (size_t next = 0; next < pieces.size();) {
      if (is_blank_at(pieces[next].begin) && lines->size() > before && ++next == pieces.size()) {
        break;
      }
      const size_t begin = pieces[next].begin;
      size_t end = begin;
      for (; next < pieces.size() && pieces[next].end - begin <= style_.width; ++next) {
        end = pieces[next].end;
      }
      if (next < pieces.size() && pieces[next].size() > style_.width) {
        end = end_within(&pieces[next], begin, end);
        if (pieces[next].size() == 0) ++next;
      }
      while (end > begin && is_blank_at(end - 1)) --end;
      if (end > begin) lines->push_back(slice(begin, end));
    }
  }

 private:
  struct Piece {
    size_t begin, end;
    size_t size() const { return end - begin; }
  };
  using Pieces = std::vector<Piece, Counted<Piece>>;

  std::string_view at(size_t place) const {
    if (place + 1 >= offsets_.size()) return "";
    return std::string_view(text_.bytes())
        .substr(offsets_[place], offsets_[place + 1] - offsets_[place]);
  }
  bool is_blank_at(size_t place) const { return u_isUWhiteSpace(character(at(place))); }
  bool is_letter_at(size_t place) const {
    return !at(place).empty() && u_isalpha(character(at(place)));
  }
  Value slice(size_t begin, size_t end) const {
    return Value::text(text_.slice(offsets_[begin], offsets_[end] - offsets_[begin]));
  }

  // Behind a hyphen between letters.
  bool is_end(size_t place) const {
    if (!style_.breaks_at_hyphens || place < 3 || at(place - 1) != "-") return false;
    const bool after =
        is_letter_at(place - 2) &&
        (is_letter_at(place - 3) || (place > 3 && at(place - 3) == "-" && is_letter_at(place - 4)));
    return after && is_letter_at(place) && is_letter_at(place + (at(place + 1) == "-" ? 2 : 1));
  }

  // Blanks, words, and parts of words.
  Pieces all_pieces() const {
    Pieces pieces;
    const size_t size = offsets_.size() - 1;
    spend(static_cast<int64_t>(size));
    for (size_t i = 0; i < size; ++i) {
      if (i > 0 && is_blank_at(i) == is_blank_at(i - 1) && !is_end(i)) {
        pieces.back().end = i + 1;
      } else {
        pieces.push_back({i, i + 1});
      }
    }
    return pieces;
  }

  // Where a line ends that a piece of more than its width follows, which is taken or cut.
  size_t end_within(Piece* piece, size_t begin, size_t end) const {
    if (!style_.breaks_words) {
      if (end > begin) return end;
      return piece->begin = piece->end;
    }
    size_t cut = begin + style_.width;
    for (size_t i = cut; style_.breaks_at_hyphens && i > piece->begin + 1; --i) {
      if (at(i - 1) != "-") continue;
      const size_t word = piece->begin;
      bool other = false;
      for (size_t j = word; j + 1 < i; ++j) other = other || at(j) != "-";
      if (other) cut = i;
      break;
    }
    return piece->begin = cut;
  }

  const Text& text_;
  const WrapStyle& style_;
  Offsets offsets_;
};

}  // namespace

Value wordwrap(const Arguments& arguments) {
  const int64_t width = integer_of(arguments.get(1, "width", Value::integer(79)), "width");
  require(width > 0, "wordwrap: expected a positive width, got {}", width);
  const WrapStyle style = {
      .width = static_cast<size_t>(width),
      .breaks_words = truth(arguments.get(2, "break_long_words", Value::boolean(true))),
      .breaks_at_hyphens = truth(arguments.get(4, "break_on_hyphens", Value::boolean(true)))};
  const Value given = arguments.get(3, "wrapstring", Value::none());
  const Text between = given.is_none() ? Text("\n") : text_of(given);
  Text out;
  bool begun = false;
  for (const Value& paragraph : split_lines(text_of(operand(arguments)))) {
    Values lines;
    Wrapped(*paragraph.as_text(), style).add_lines(&lines);
    if (lines.empty()) lines.push_back(Value::text(""));
    for (const Value& line : lines) {
      if (std::exchange(begun, true)) out.append(between);
      out.append(*line.as_text());
    }
  }
  return Value::text(std::move(out));
}

}  // namespace attnres::jinja
