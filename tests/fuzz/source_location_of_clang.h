// std::source_location for clang before 16, for which libstdc++'s header does not define it. Fuzz targets include it
// first, by -include; no other target needs it.
#pragma once

#include <source_location>

#if defined(__clang__) && !__has_builtin(__builtin_source_location)
namespace std {
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE(),
                                           const char* function = __builtin_FUNCTION()) {
    source_location here;
    here.file_ = file;
    here.line_ = line;
    here.function_ = function;
    return here;
  }
  constexpr unsigned line() const { return line_; }
  constexpr unsigned column() const { return 0; }
  constexpr const char* file_name() const { return file_; }
  constexpr const char* function_name() const { return function_; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  unsigned line_ = 0;
};
}  // namespace std
#endif
