#include "attnres/infer/text_stream.h"

#include <iterator>

namespace attnres {

std::string TextStream::add(int32_t id) {
  const std::string control = reader_ ? tokenizer_->control_token_name(id) : "";
  std::string text;
  if (!control.empty()) {
    text = finish_text();  // no stop string goes on beyond it
  } else if (unstopped_ > 0) {
    text = decoder_.add(id);
  } else {
    text = stops_.add(decoder_.add(id));
  }
  unstopped_ -= unstopped_ > 0 ? 1 : 0;
  if (reader_) add_pieces(reader_->add(text));
  if (!control.empty() && !stopped()) add_pieces(reader_->add_control(control));
  return text;
}

std::string TextStream::finish() {
  std::string text = finish_text();
  if (reader_) {
    add_pieces(reader_->add(text));
    add_pieces(reader_->finish());
  }
  return text;
}

std::string TextStream::finish_text() {
  std::string text = stops_.add(decoder_.finish());
  return text += stops_.finish();
}

void TextStream::add_pieces(std::vector<ReplyPiece> pieces) {
  std::move(pieces.begin(), pieces.end(), std::back_inserter(pieces_));
}

}  // namespace attnres
