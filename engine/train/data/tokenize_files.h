// Converts text files to a file of tokens, on several threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/train/data/documents.h"
#include "engine/train/data/token_file.h"

namespace trainctl {

struct TokenizeOptions {
  DocumentOptions documents;
  std::string tokenizer;  ///< folder or file
  std::string output;
  bool header = true;        ///< that of llm.c
  bool replace = false;      ///< an existing file
  bool adds_special = true;  ///< tokens that the tokenizer puts around a text
  std::string end_token;     ///< follows each document; empty: none
  int threads = 1;
};

struct TokenizeResult {
  int64_t documents = 0, bytes = 0, tokens = 0;
  TokenType type = TokenType::u16;  ///< i32 if the vocabulary has more than 65,536 tokens
};

/// The result does not depend on the number of threads. Throws EnvError, with the place of the document, if one cannot
/// be read.
TokenizeResult tokenize_files(const TokenizeOptions& options);

}  // namespace trainctl
