#include "attnres/data/not_text.h"

#include <fmt/core.h>

#include <array>

namespace attnres {
namespace {

using std::string_view_literals::operator""sv;

constexpr const char* kUnpack = "unpack it";
constexpr const char* kTokenize =
    "attnres tokenize --data FILE --out DIR makes tokens of it, which train --data DIR takes";
constexpr const char* kConvert = "convert it (iconv -f UTF-16 -t UTF-8 FILE > NEW)";
constexpr const char* kConvert32 = "convert it (iconv -f UTF-32 -t UTF-8 FILE > NEW)";
constexpr const char* kExportText = "export its text";
constexpr const char* kJsonLines =
    "export its texts as JSON lines, of which attnres tokenize --data FILE --out DIR makes tokens";

struct Kind {
  std::string_view begins;
  const char *what, *instead;
};
// Where one begins as another, the longer comes first.
constexpr std::array kKinds = {
    Kind{"\xff\xfe\0\0"sv, "is UTF-32", kConvert32},
    Kind{"\0\0\xfe\xff"sv, "is UTF-32", kConvert32},
    Kind{"\xff\xfe"sv, "is UTF-16", kConvert},
    Kind{"\xfe\xff"sv, "is UTF-16", kConvert},
    Kind{"\x1f\x8b"sv, "is compressed (gzip)", kTokenize},
    Kind{"\x28\xb5\x2f\xfd"sv, "is compressed (zstd)", kTokenize},
    Kind{"BZh91AY&SY"sv, "is compressed (bzip2)", kUnpack},
    Kind{"\xfd\x37zXZ\0"sv, "is compressed (xz)", kUnpack},
    Kind{"\x04\x22\x4d\x18"sv, "is compressed (lz4)", kUnpack},
    Kind{"PK\x03\x04"sv, "is a zip archive", kUnpack},
    Kind{"PK\x05\x06"sv, "is a zip archive", kUnpack},
    Kind{"7z\xbc\xaf\x27\x1c"sv, "is a 7z archive", kUnpack},
    Kind{"Rar!\x1a\x07"sv, "is a RAR archive", kUnpack},
    Kind{"PAR1"sv, "is a Parquet file", kJsonLines},
    Kind{"ARROW1\0"sv, "is an Arrow file", kJsonLines},
    Kind{"SQLite format 3\0"sv, "is an SQLite database", kJsonLines},
    Kind{"%PDF-"sv, "is a PDF", kExportText},
    Kind{"{\\rtf1"sv, "is rich text (RTF)", kExportText},
    Kind{"GGUF"sv, "is a model's weights (GGUF)", "name the text itself"},
    Kind{"\x89PNG\r\n\x1a\n"sv, "is an image", "name the text itself"},
    Kind{"\xff\xd8\xff"sv, "is an image", "name the text itself"},
    Kind{"\x7f\x45LF"sv, "is a program", "name the text itself"},
};

}  // namespace

std::optional<NotText> find_not_text(std::string_view bytes) {
  for (const Kind& kind : kKinds) {
    if (bytes.starts_with(kind.begins)) return NotText{kind.what, kind.instead};
  }
  const size_t zero = bytes.find('\0');
  if (zero == std::string_view::npos) return std::nullopt;
  return NotText{fmt::format("holds a zero byte at {}, so it is no text", zero),
                 "name text in UTF-8"};
}

}  // namespace attnres
