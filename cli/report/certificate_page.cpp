// A certificate of `trainctl verify` as one self-contained HTML file.
#include "cli/report/certificate_page.h"

#include <fmt/format.h>

#include <string_view>

#include "cli/report/html_text.h"
#include "cli/report/page.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string number_cell(const std::optional<double>& number) {
  return "<td class=num>" + (number ? fmt::format("{:.1e}", *number) : std::string()) + "</td>";
}

std::string check_row(const VerifiedCheck& check) {
  const char* color = check.status == CheckStatus::passed   ? "done"
                      : check.status == CheckStatus::failed ? "failed"
                                                            : "soft";
  std::string details = html_text(check.summary);
  for (const std::string& finding : check.findings)
    details += "<br><span class=failed>" + html_text(finding) + "</span>";
  return fmt::format("<tr><td>{}</td><td class={}>{}</td><td>{}</td>{}{}<td>{}</td></tr>\n", html_text(check.name),
                     color, to_string(check.status), html_text(check.rule), number_cell(check.largest),
                     number_cell(check.tolerance), details);
}

std::string fact(std::string_view what, const std::string& value) {
  return fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", what, html_text(value));
}

}  // namespace

std::string certificate_page(const Certificate& c) {
  const std::string verdict = c.passed() ? "verified" : "not verified";
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width\">\n"
      "<title>Certificate of {0}: {1}</title>\n<style>{2}\nmain {{ max-width: 70rem; margin: 2rem auto; padding: 0 "
      "1rem; }}\n"
      "td {{ vertical-align: top; padding: .3rem .6rem .3rem 0; }}\n</style>\n<main>\n<h1>{0}: <span "
      "class={3}>{1}</span></h1>\n",
      html_text(c.name), verdict, page_style(), c.passed() ? "done" : "failed");
  page += "<table>\n" + fact("job", c.digest) + fact("trainctl", c.trainctl) + fact("written", c.written) +
          fact("ranks", std::to_string(c.ranks)) + fact("device", c.device) +
          fact("runs", fmt::format("{} steps each, in fp32", c.steps)) +
          fact("reduced", c.changes.empty() ? "no: the job ran in full size" : join(c.changes)) + "</table>\n";
  page += "<h2>Checks</h2>\n<table>\n<tr><th>check<th>result<th>rule<th>largest<th>tolerance<th>details</tr>\n";
  for (const VerifiedCheck& check : c.checks) page += check_row(check);
  return page + "</table>\n</main>\n</html>\n";
}

}  // namespace trainctl
