#include "attnres/data/shared_documents.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "attnres/data/in_parallel.h"

namespace attnres {
namespace {

constexpr size_t kDocumentsAtOnce = 4096;   // that a thread takes
constexpr int64_t kTokensAtOnce = 1 << 24;  // whose documents are known at a time
constexpr int64_t kTelling = 32;            // tokens; many documents begin alike

struct Range {
  int64_t first = 0, count = 0;
};

// Documents from `first` on that end there.
std::vector<Range> ranges_from(int64_t first, const std::vector<int64_t>& ends) {
  std::vector<Range> ranges;
  for (const int64_t end : ends) {
    ranges.push_back({first, end - first});
    first = end;
  }
  return ranges;
}

// Documents that end there, and what follows the last.
std::vector<Range> ranges_of(std::vector<int64_t> ends, int64_t size) {
  if (size > (ends.empty() ? 0 : ends.back())) ends.push_back(size);
  return ranges_from(0, ends);
}

// What is looked for. Looking changes nothing but what was found, and may be done on many threads.
class Wanted {
 public:
  explicit Wanted(const ScoredDocuments& scored)
      : documents_(ranges_of(scored.ends, std::ssize(scored.tokens.ids))),
        found_(documents_.size()) {
    const bool is_cut = documents_.size() > scored.ends.size();
    if (is_cut && documents_.back().count >= kTelling) cut_ = documents_.back().count;
    for (size_t i = 0; i < documents_.size(); ++i) {
      const auto& [first, count] = documents_[i];
      const uint64_t hash = XXH3_64bits(scored.tokens.ids.data() + first, count * 4);
      if (is_cut && i + 1 == documents_.size()) {
        hash_of_cut_ = hash;
      } else if (count > 1) {
        lengths_.insert(count);
        numbers_.emplace(hash, i);
      }
    }
  }

  void look_at(const TrainingTokens& stream, const Range& document, int64_t vocab_size) {
    const bool may_be_cut = cut_ > 0 && document.count >= cut_;
    const bool may_be_whole = lengths_.contains(document.count);
    if (!may_be_cut && !may_be_whole) return;
    const std::vector<int32_t> tokens =
        stream.read(document.first, may_be_whole ? document.count : cut_, vocab_size);
    if (may_be_cut && XXH3_64bits(tokens.data(), cut_ * 4) == hash_of_cut_) found_.back() = true;
    if (!may_be_whole) return;
    const auto [first, last] = numbers_.equal_range(XXH3_64bits(tokens.data(), tokens.size() * 4));
    for (auto it = first; it != last; ++it) found_[it->second] = true;
  }

  std::vector<int64_t> found() const {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < found_.size(); ++i) {
      if (found_[i]) numbers.push_back(static_cast<int64_t>(i));
    }
    return numbers;
  }

 private:
  std::vector<Range> documents_;
  std::vector<std::atomic<bool>> found_;
  std::unordered_set<int64_t> lengths_;
  std::unordered_multimap<uint64_t, size_t> numbers_;  // by the hash of their tokens
  int64_t cut_ = 0;                                    // tokens of the document that is cut
  uint64_t hash_of_cut_ = 0;
};

void look_at_all(Wanted& wanted, const TrainingTokens& stream, const std::vector<Range>& documents,
                 int64_t vocab_size) {
  const size_t portions = (documents.size() + kDocumentsAtOnce - 1) / kDocumentsAtOnce;
  in_parallel(portions, [&](size_t portion) {
    const size_t end = std::min(documents.size(), (portion + 1) * kDocumentsAtOnce);
    for (size_t i = portion * kDocumentsAtOnce; i < end; ++i) {
      wanted.look_at(stream, documents[i], vocab_size);
    }
  });
}

}  // namespace

int64_t ScoredDocuments::count() const {
  const int64_t last = ends.empty() ? 0 : ends.back();
  return std::ssize(ends) + (std::ssize(tokens.ids) > last ? 1 : 0);
}

void ScoredDocuments::append(const ScoredDocuments& more) {
  const int64_t begin = std::ssize(tokens.ids);
  if (begin > 0 && (ends.empty() || ends.back() != begin)) ends.push_back(begin);
  for (const int64_t end : more.ends) ends.push_back(begin + end);
  tokens.append(more.tokens);
}

std::vector<int64_t> find_shared_documents(const ScoredDocuments& scored,
                                           const std::vector<TrainingTokens>& streams,
                                           int64_t vocab_size, int32_t end_of_document) {
  Wanted wanted(scored);
  for (const TrainingTokens& stream : streams) {
    int64_t begin = 0;  // of the document that goes on
    for (int64_t at = 0; at < stream.size(); at += kTokensAtOnce) {
      const int64_t count = std::min(kTokensAtOnce, stream.size() - at);
      std::vector<int64_t> ends = stream.ends(at, count, end_of_document);
      const bool is_last = at + count == stream.size();
      if (is_last && (ends.empty() ? begin : ends.back()) < stream.size()) {
        ends.push_back(stream.size());
      }
      look_at_all(wanted, stream, ranges_from(begin, ends), vocab_size);
      if (!ends.empty()) begin = ends.back();
    }
  }
  return wanted.found();
}

ScoredDocuments without_documents(const ScoredDocuments& scored,
                                  const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return scored;
  const std::unordered_set<int64_t> left_out(numbers.begin(), numbers.end());
  const std::vector<Range> documents = ranges_of(scored.ends, std::ssize(scored.tokens.ids));
  ScoredDocuments kept;
  for (int64_t i = 0; i < std::ssize(documents); ++i) {
    if (left_out.contains(i)) continue;
    const auto& [first, count] = documents[i];
    const auto& ids = scored.tokens.ids;
    EvaluationTokens document = {{ids.begin() + first, ids.begin() + first + count}};
    for (int64_t t = first; !scored.tokens.counts.empty() && t < first + count; ++t) {
      document.counts.push_back(scored.tokens.counts_at(t));
    }
    kept.tokens.append(document);
    if (i < std::ssize(scored.ends)) kept.ends.push_back(std::ssize(kept.tokens.ids));
  }
  return kept;
}

}  // namespace attnres
