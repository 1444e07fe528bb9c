#include "attnres/infer/text_stream.h"

namespace attnres {

std::string TextStream::finish() {
  std::string text = stops_.add(decoder_.finish());
  return text += stops_.finish();
}

}  // namespace attnres
