// The decoder of a tokenizer.json, which turns the texts of tokens into the text that they represent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/text/json_part.h"

namespace trainctl {

/// Changes the texts of tokens in place, and may join some of them; concatenated, they are then the decoded text.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;
/// Returns a null function for null. Throws EnvError for a type that is not supported.
Decoder read_decoder(const JsonPart& part);

/// `bytes` with U+FFFD in place of each sequence that is not UTF-8, as Rust's String::from_utf8_lossy.
std::string valid_utf8(std::string_view bytes);

}  // namespace trainctl
