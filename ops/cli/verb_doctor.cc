// `swax doctor`: the rows of doctor.h as a table of at most 80 columns, or JSON.
#include <algorithm>

#include "ops/cli/doctor.h"
#include "ops/cli/doctor_slurm.h"
#include "ops/cli/output.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kColumns = 80;

// Cut at spaces where there are any.
std::vector<std::string> lines_of(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (text.size() - begin > width) {
    size_t end = text.rfind(' ', begin + width);
    if (end == std::string::npos || end <= begin) end = begin + width;
    lines.push_back(text.substr(begin, end - begin));
    begin = end + (text[end] == ' ' ? 1 : 0);
  }
  lines.push_back(text.substr(begin));
  return lines;
}

void print_table(const std::vector<DoctorRow>& rows) {
  size_t width = 0;
  for (const DoctorRow& row : rows) width = std::max(width, row.check.size());
  const size_t indent = width + 2 + 5;
  for (const DoctorRow& row : rows) {
    const std::string text =
        row.fits || row.advice.empty() ? row.found : row.found + ": " + row.advice;
    bool first = true;
    for (const std::string& line : lines_of(text, kColumns - indent)) {
      const std::string mark =
          row.fits ? coloured("ok", Colour::kGood) + "   " : coloured("bad", Colour::kBad) + "  ";
      print_line(first ? row.check + std::string(width + 2 - row.check.size(), ' ') + mark + line
                       : std::string(indent, ' ') + line);
      first = false;
    }
  }
}

void print_rows_json(const std::vector<DoctorRow>& rows, bool fits) {
  Json checks = Json::array();
  for (const DoctorRow& row : rows) {
    Json check = Json::object();
    check.set("check", row.check).set("fits", row.fits).set("found", row.found);
    if (!row.fits) check.set("advice", row.advice);
    checks.push(std::move(check));
  }
  print_json(Json::object().set("fits", fits).set("checks", std::move(checks)));
}

int doctor(const Args& args) {
  std::vector<DoctorRow> rows = doctor_machine(args.text("--state"));
  for (DoctorRow& row : doctor_devices()) rows.push_back(std::move(row));
  if (args.has("--slurm"))
    for (DoctorRow& row : doctor_slurm(args.text("--state"))) rows.push_back(std::move(row));
  const bool fits = std::all_of(rows.begin(), rows.end(), [](const auto& r) { return r.fits; });
  if (args.text("--output") == "json") {
    print_rows_json(rows, fits);
  } else {
    print_table(rows);
  }
  return fits ? kExitOk : kExitInternal;
}

}  // namespace

VerbSpec doctor_verb() {
  return {.name = "doctor",
          .summary = "Checks whether this machine has what swax needs.",
          .details =
              "Processor, memory, Open MPI, libraries, the state folder, and the devices with "
              "their self test (run by swax-train, which must lie beside swax). Exit code 0: "
              "all fits; 1: something does not, and the row says what to do.",
          .words = {},
          .options = {{.name = "--state",
                       .value = "DIR",
                       .doc = "state folder to check, or the nearest folder above it",
                       .fallback = "runs"},
                      {.name = "--slurm",
                       .value = "",
                       .doc = "also the Slurm cluster that is reached from here",
                       .kind = ArgKind::kFlag},
                      output_option()},
          .examples = {"swax doctor", "swax doctor --slurm --state /shared/runs"},
          .run = doctor};
}

}  // namespace swax
