#include "tests/sim/jobs.h"

#include "jobs/spec.h"
#include "proto/base/text.h"
#include "tests/jobs/spec_texts.h"

namespace swax::sim {
namespace {

pb::JobSpec base_spec() {
  const SpecResult result =
      load_spec(test::minimal_with("global_batch_size = 4", "global_batch_size = 8"), "sim", {});
  SWAX_CHECK(result.ok());
  pb::JobSpec spec = result.spec;
  spec.mutable_data()->mutable_sources(0)->set_digest(std::string(32, 'a'));
  return spec;
}

void draw_kind(World& world, SimJob* job) {
  const uint64_t draw = world.below(20);
  if (draw == 0) {
    job->kind = JobKind::kNumeric;
    job->fail_step = 1 + world.below(job->spec.training().steps());
  } else if (draw == 1) {
    job->kind = JobKind::kBadData;
  } else if (draw <= 3) {
    job->kind = JobKind::kCrashLoop;
  } else if (draw <= 6) {
    job->cancel_ms = job->submit_ms + world.between(0, 240'000);
    job->cancel_now = world.chance(0.5);
    if (world.chance(0.3)) job->resume_ms = job->cancel_ms + world.between(60'000, 300'000);
  }
}

SimJob draw_job(World& world, const pb::JobSpec& base, int number, int64_t span_ms) {
  SimJob job;
  job.name = "job-" + to_text(number);
  job.spec = base;
  pb::JobSpec& spec = job.spec;
  spec.mutable_job()->set_name(job.name);
  spec.mutable_job()->set_seed(world.word());
  spec.mutable_training()->set_steps(static_cast<uint64_t>(world.between(8, 40)));
  const auto ranks = static_cast<uint32_t>(world.between(1, 6));
  spec.mutable_parallelism()->set_ranks(ranks);
  spec.mutable_parallelism()->clear_allowed_ranks();
  for (uint32_t r = world.chance(0.5) ? 1 : ranks; r <= ranks; ++r)
    spec.mutable_parallelism()->add_allowed_ranks(r);
  spec.mutable_checkpoint()->set_interval(static_cast<uint64_t>(world.between(2, 10)));
  spec.mutable_checkpoint()->set_keep_latest_k(static_cast<uint32_t>(world.between(1, 3)));
  spec.mutable_fault_tolerance()->set_max_no_progress(static_cast<uint32_t>(world.between(2, 7)));
  job.step_ms = world.between(800, 4000);
  job.submit_ms = world.between(0, span_ms);
  // Some last for many minutes: they see what comes and goes, and are worth growing back.
  if (job.submit_ms < span_ms / 2 && world.chance(0.4))
    spec.mutable_training()->set_steps(5 * spec.training().steps());
  draw_kind(world, &job);
  uint64_t bits = mix_bits(spec.job().seed());
  for (uint64_t step = 0; step <= spec.training().steps(); ++step) {
    job.bits.push_back(bits);
    bits = mix_bits(bits ^ (step + 1));
  }
  return job;
}

}  // namespace

SimJobs draw_jobs(World& world, int count, int64_t span_ms) {
  static const pb::JobSpec base = base_spec();
  SimJobs jobs;
  for (int i = 0; i < count; ++i) {
    SimJob job = draw_job(world, base, i, span_ms);
    jobs.emplace(job.name, std::move(job));
  }
  return jobs;
}

std::string digest_text(uint64_t bits) { return Hash128{.high = bits, .low = bits}.hex(); }

}  // namespace swax::sim
