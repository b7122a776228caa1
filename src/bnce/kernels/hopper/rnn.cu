// A tanh RNN's steps in one launch (persistent.cu).

constexpr int CTAS = H / ROWS, PAIRS = N / 4;  // of neighbouring units that a thread has

__device__ __forceinline__ int pair_stream(const Place& me, int i) { return 8 * (i / 2) + 2 * me.q + i % 2; }

static_assert(4 * N * ROW_BYTES<16> + KEEP_BYTES <= REST_BYTES, "too many streams");

// A pair's place among what the group exchanges.
__device__ __forceinline__ u32* exchanged(u16* exchange, int part, int unit, int stream) {
    u16* block = exchange + (part * 2 + unit / 64) * (N * 64);
    return (u32*)(block + swizzled(stream, unit % 64 / 8) / 2 + unit % 8);
}

#ifdef KERNEL_RNN_FORWARD
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rnn_forward(const u16* weight_HH, const u16* sum_TBH, u16* hidden_SBH, u16* before_SBH, const u16* keep_SB,
            u16* exchange, u64* arrived, int T, int B, int size, int passes) {
    Shared at = shared_memory();
    u32 rest = shared_rest();
#if RESETS
    u32 keeps = rest + 2 * N * ROW_BYTES<16>;
#endif
    Place me = place();
    int part = block_number() % CTAS, unit = me.warp * 16 + 2 * me.r;
    u64 base = arrivals_before(arrived, block_number() / CTAS * passes, CTAS);
    Weights weights;
    keep_rows(weights, at.input, weight_HH, [=](int row) {
        return part * ROWS + row / 16 * 16 + row % 8 * 2 + row % 16 / 8;
    });
    make_barriers();
    u32 parity = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        Group now = group(CTAS, passes, pass, B, size);
        u16* exchange_now = exchange + (u64)now.number * (2 * N * H);
        load_rows<16>(rest, sum_TBH + (u64)now.first * H + part * ROWS, H, now.count);
#if RESETS
        load_keeps(keeps, keep_SB, B, now, 1);
#endif
        load_first(at, before_SBH + (u64)now.first * H, now.count);
#pragma unroll 1
        for (int t = 0; t < T; t++) {
            u64 row = (u64)t * B + now.first;
            if (t) {
                request(at, arrived, now.number, base + (u64)t * CTAS, exchange_now + t % 2 * (N * H));
                copies_wait<0>();
                block_sync();  // from now on nobody reads what the step before left in shared memory
            }
            float sum[N / 2];
            multiply(sum, weights, at, t > 0, parity, [&] {
                if (t + 1 < T) {
                    load_rows<16>(rest + (t + 1) % 2 * (N * ROW_BYTES<16>), sum_TBH + (row + B) * H + part * ROWS, H,
                                  now.count);
                }
                copies_commit();
            });
            parity ^= t > 0;
            u32 hidden[PAIRS];
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                int stream = pair_stream(me, i);
                u32 input = load_4(rest + t % 2 * (N * ROW_BYTES<16>) + stream * ROW_BYTES<16> + unit * 2);
                float left = sum[i / 2 * 4 + i % 2], right = sum[i / 2 * 4 + i % 2 + 2];
                hidden[i] = pack(squash(left + low(input)), squash(right + high(input)));
                u32 sent = hidden[i];
#if RESETS
                sent = kept(keeps, t + 1, stream) ? sent : 0u;
#endif
                if (t + 1 < T) *exchanged(exchange_now + (t + 1) % 2 * (N * H), part, unit, stream) = sent;
            }
            if (t + 1 < T) arrive(arrived, now.number);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                int stream = pair_stream(me, i);
                u64 to = (row + B + stream) * H + part * ROWS + unit;
                if (stream < now.count) {
                    *(u32*)(hidden_SBH + to) = hidden[i];
#if RESETS
                    *(u32*)(before_SBH + to) = kept(keeps, t + 1, stream) ? hidden[i] : 0u;
#endif
                }
            }
#if RESETS
            if (t + 2 <= T) load_keeps(keeps, keep_SB, B, now, t + 2);
#endif
        }
        block_sync();  // before the next pass
    }
}
#endif

#ifdef KERNEL_RNN_BACKWARD
extern "C" __global__ void __launch_bounds__(THREADS, 1)
rnn_backward(const u16* weight_HH, u16* sum_grad_TBH, const u16* grad_TBH, const u16* hidden_SBH, const u16* keep_SB,
             u16* exchange, u64* arrived, int T, int B, int size, int passes) {
    constexpr u32 HALF_BYTES = N * ROW_BYTES<16>;
    Shared at = shared_memory();
    u32 rest = shared_rest();
#if RESETS
    u32 keeps = rest + 4 * N * ROW_BYTES<16>;
#endif
    Place me = place();
    int part = block_number() % CTAS, unit = me.warp * 16 + 2 * me.r;
    u64 base = arrivals_before(arrived, block_number() / CTAS * passes, CTAS);
    Weights weights;
    keep_columns(weights, at.input, weight_HH, 0, part * ROWS);
    make_barriers();
    auto load_step = [=](const Group& now, int t) {
        u64 from = ((u64)t * B + now.first) * H + part * ROWS;
        u32 to = rest + t % 2 * (2 * HALF_BYTES);
        load_rows<16>(to, grad_TBH + from, H, now.count);
        load_rows<16>(to + HALF_BYTES, hidden_SBH + from + (u64)B * H, H, now.count);
    };
    u32 parity = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        Group now = group(CTAS, passes, pass, B, size);
        u16* exchange_now = exchange + (u64)now.number * (2 * N * H);
        load_step(now, T - 1);
        copies_commit();
        copies_wait<0>();
        block_sync();
        if (T > 1) load_step(now, T - 2);
        copies_commit();
#pragma unroll 1
        for (int t = T - 1; t >= 0; t--) {
            u64 row = (u64)t * B + now.first;
            float sum[N / 2];
            if (t < T - 1) {
                u64 target = base + (u64)(T - 1 - t) * CTAS;
                request(at, arrived, now.number, target, exchange_now + (t + 1) % 2 * (N * H));
                copies_wait<0>();
                block_sync();  // from now on nobody reads what the step before left in shared memory
                multiply(sum, weights, at, true, parity, [&] {
                    if (t) load_step(now, t - 1);
                    copies_commit();
                });
                parity ^= 1;
            } else {
#pragma unroll
                for (int i = 0; i < N / 2; i++) sum[i] = 0.0f;
            }
            u32 sum_grad[PAIRS], from = rest + t % 2 * (2 * HALF_BYTES);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                int stream = pair_stream(me, i);
                float left = sum[i / 2 * 4 + i % 2], right = sum[i / 2 * 4 + i % 2 + 2];
#if RESETS
                bool keeps_hidden = t == T - 1 || kept(keeps, t + 1, stream);
                left = keeps_hidden ? left : 0.0f;
                right = keeps_hidden ? right : 0.0f;
#endif
                u32 grad = load_4(from + stream * ROW_BYTES<16> + unit * 2);
                u32 hidden = load_4(from + HALF_BYTES + stream * ROW_BYTES<16> + unit * 2);
                float one = low(hidden), two = high(hidden);
                sum_grad[i] = pack((left + low(grad)) * (1.0f - one * one), (right + high(grad)) * (1.0f - two * two));
                if (t) *exchanged(exchange_now + t % 2 * (N * H), part, unit, stream) = sum_grad[i];
            }
            if (t) arrive(arrived, now.number);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                int stream = pair_stream(me, i);
                if (stream < now.count) *(u32*)(sum_grad_TBH + (row + stream) * H + part * ROWS + unit) = sum_grad[i];
            }
#if RESETS
            if (t) load_keeps(keeps, keep_SB, B, now, t);
#endif
        }
        block_sync();  // before the next pass
    }
}
#endif
