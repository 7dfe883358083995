// The pre-tokenizer of a tokenizer.json: how a text is cut into pieces that are tokenized by themselves.
#pragma once

#include <functional>
#include <vector>

#include "engine/text/json_part.h"
#include "engine/text/pieces.h"

namespace trainctl {

using PreTokenizer = std::function<void(Pieces&)>;

struct PreTokenizers {
  std::vector<PreTokenizer> steps;
  /// The last step writes bytes as characters (byte_alphabet.h). It is not among `steps`, so that a model can read the
  /// bytes.
  bool ends_with_bytes = false;
};

/// Throws EnvError for a type that is not supported.
PreTokenizers read_pre_tokenizers(const JsonPart& part);

/// Writes the bytes of all pieces as characters.
void write_bytes_as_characters(Pieces& pieces);

}  // namespace trainctl
