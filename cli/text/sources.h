// Texts of files that errors may quote.
#pragma once

#include <string>

#include "engine/base/source_pos.h"

namespace trainctl {

/// Keeps the text of a file: standard input and pipes cannot be read a second time.
void keep_source(const std::string& file, std::string text);

/// The text of the file of `pos`: the kept text, or the current contents; "" if it is not a regular file.
const std::string& source_of(const SourcePos& pos);

}  // namespace trainctl
