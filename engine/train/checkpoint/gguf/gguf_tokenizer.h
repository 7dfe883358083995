// The tokenizer of a model folder as settings of llama.cpp: byte-level BPE ("gpt2"), and BPE over the pieces of
// SentencePiece with bytes as the last resort ("llama").
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/train/files/gguf_file.h"

namespace trainctl {

/// `folder`: has tokenizer.json, and may have config.json, tokenizer_config.json and chat_template.jinja. `vocab`: rows
/// of the embedding; tokens that the tokenizer lacks are unused. Throws EnvError, or SpecError (--format) for a
/// tokenizer that the format does not have.
std::vector<std::pair<std::string, GgufSetting>> gguf_tokenizer(const std::string& folder, int64_t vocab);

}  // namespace trainctl
