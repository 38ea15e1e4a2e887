// Frames: what is encoded comes back; any other bytes give a reason and never a crash. Method:
// every byte of a frame is damaged, every prefix is decoded, and hostile frames of fixed seeds are.
#include "proto/frame.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/wire/hostile_frames.h"

namespace swax {
namespace {

std::string encoded(const pb::Envelope& envelope) { return encode_frame(envelope).value(); }

TEST(Frame, GoesAroundUnchanged) {
  for (const pb::Envelope& envelope : sample_envelopes()) {
    const std::string frame = encoded(envelope);
    EXPECT_EQ(frame, frame_of(envelope.SerializeAsString()));
    pb::Envelope back;
    ASSERT_EQ(decode_envelope(frame, &back), FrameProblem::kNone);
    EXPECT_EQ(back.SerializeAsString(), envelope.SerializeAsString());
  }
}

TEST(Frame, NamesWhatIsWrong) {
  const std::string frame = encoded(sample_envelopes()[0]);
  pb::Envelope out;
  EXPECT_EQ(decode_envelope("", &out), FrameProblem::kShort);
  EXPECT_EQ(decode_envelope(frame.substr(0, kFrameHeaderBytes - 1), &out), FrameProblem::kShort);
  EXPECT_EQ(decode_envelope("X" + frame.substr(1), &out), FrameProblem::kMagic);
  std::string other = frame;
  other[4] = 2;
  EXPECT_EQ(decode_envelope(other, &out), FrameProblem::kVersion);
  other = frame;
  other[6] = 1;
  EXPECT_EQ(decode_envelope(other, &out), FrameProblem::kVersion);
  EXPECT_EQ(decode_envelope(frame + "x", &out), FrameProblem::kLength);
  other = frame;
  other.back() = static_cast<char>(other.back() ^ 1);
  EXPECT_EQ(decode_envelope(other, &out), FrameProblem::kHash);
  other = frame;
  other[11] = 1;  // 16 MiB and some
  EXPECT_EQ(decode_envelope(other, &out), FrameProblem::kTooLarge);
  EXPECT_EQ(decode_envelope(frame_of("\xff\xff\xff"), &out), FrameProblem::kParse);
  EXPECT_EQ(decode_envelope(frame_of(""), &out), FrameProblem::kParse);  // no body
}

TEST(Frame, RefusesEveryDamagedByteAndEveryPrefix) {
  const std::string frame = encoded(sample_envelopes()[2]);
  for (size_t i = 0; i < frame.size(); ++i) {
    std::string bad = frame;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    pb::Envelope out;
    EXPECT_NE(decode_envelope(bad, &out), FrameProblem::kNone) << "byte " << i;
    EXPECT_NE(decode_envelope(frame.substr(0, i), &out), FrameProblem::kNone) << "prefix " << i;
  }
}

TEST(Frame, RefusesMessagesThatAreTooLarge) {
  pb::Envelope envelope = sample_envelopes().back();
  envelope.set_node(std::string(kFramePayloadBytesMax, 'n'));
  const Result<std::string> frame = encode_frame(envelope);
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.status().code(), Code::kResourceExhausted);
}

// Nested far deeper than any message of ours: a parser that recurses without limit would not
// return.
TEST(Frame, RefusesDeepNesting) {
  std::string payload;
  for (int depth = 0; depth < 200; ++depth) {
    std::string size(1, static_cast<char>(payload.size() & 0x7f));
    if (payload.size() > 0x7f)
      size = {static_cast<char>((payload.size() & 0x7f) | 0x80),
              static_cast<char>(payload.size() >> 7)};
    payload = "\x0b" + size + payload;  // group start of field 1
  }
  pb::Envelope out;
  EXPECT_EQ(decode_envelope(frame_of(payload), &out), FrameProblem::kParse);
}

TEST(Frame, DecodesHostileFramesToAMessageOrAReason) {
  HostileFrames hostile(1);
  std::map<FrameProblem, int> seen;
  for (int i = 0; i < 10000; ++i) {
    pb::Envelope out;
    ++seen[decode_envelope(hostile.next(), &out)];
  }
  // Otherwise the generator would not test what it should.
  for (const FrameProblem problem :
       {FrameProblem::kNone, FrameProblem::kShort, FrameProblem::kMagic, FrameProblem::kVersion,
        FrameProblem::kLength, FrameProblem::kHash, FrameProblem::kParse}) {
    EXPECT_GT(seen[problem], 0) << frame_problem_name(problem);
  }
}

TEST(FrameBuffer, CutsAStreamWhereverItIsSplit) {
  std::string stream;
  for (const pb::Envelope& envelope : sample_envelopes()) stream += encoded(envelope);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{20}, stream.size()}) {
    FrameBuffer buffer;
    size_t got = 0;
    for (size_t at = 0; at < stream.size(); at += piece) {
      buffer.append(std::string_view(stream).substr(at, piece));
      FrameProblem problem{};
      while (const auto payload = buffer.next(&problem)) {
        ASSERT_LT(got, sample_envelopes().size());
        EXPECT_EQ(*payload, sample_envelopes()[got++].SerializeAsString());
      }
      ASSERT_EQ(problem, FrameProblem::kNone);
    }
    EXPECT_EQ(got, sample_envelopes().size());
    EXPECT_EQ(buffer.pending(), 0U);
  }
}

TEST(FrameBuffer, SaysThatAStreamIsBroken) {
  FrameBuffer buffer;
  buffer.append("GET / HTTP/1.1\r\nHost: x\r\n");
  FrameProblem problem{};
  EXPECT_FALSE(buffer.next(&problem));
  EXPECT_EQ(problem, FrameProblem::kMagic);
}

}  // namespace
}  // namespace swax
