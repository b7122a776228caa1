// An LSTM's steps in one launch (persistent.cu). Gates are stored unit by unit: G = 4·unit + gate, in
// PyTorch's order of gates.

#ifdef KERNEL_LSTM_FORWARD
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
lstm_forward(const u16* weight_GH, u16* gate_TBG, u16* hidden_SBH, u16* before_SBH, float* cell_SBH, const u16* keep_SB,
             u16* exchange, u64* arrived, int T, int B, int size, int passes) {
    constexpr int CTAS = H / 32, CELLS = N / 8;
    constexpr u32 GATE_BYTES = N * ROW_BYTES<16>, CELL_BYTES = N * ROW_BYTES<8>, HIDDEN_BYTES = N * ROW_BYTES<4>;
    constexpr u32 KEPT_BYTES = 2 * GATE_BYTES + CELL_BYTES + (RESETS ? 2 * HIDDEN_BYTES + KEEP_BYTES : HIDDEN_BYTES);
    static_assert(KEPT_BYTES <= REST_BYTES, "too many streams");
    Shared at = shared_memory();
    Place me = place();
    bool upper = me.lane >= 16;
    int column = 2 * me.q + upper, part = block_number() % CTAS, unit = me.warp * 4 + me.r % 4;
    u64 base = arrivals_before(arrived, block_number() / CTAS * passes, CTAS);
    Weights weights;
    // Of 16 rows 4 units have 4 each: input gate, candidate, forget gate, output gate.
    keep_rows(weights, at.input, weight_GH, [=](int row) {
        int kind = row % 16 / 4;
        return (part * 32 + row / 16 * 4 + row % 4) * 4 + (kind == 1 ? 2 : kind == 2 ? 1 : kind);
    });
    make_barriers();
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        float cell[CELLS];
        Group now = group(CTAS, passes, pass, B, size);
        u32 gates = shared_rest();
        load_rows<16>(gates, gate_TBG + (u64)now.first * (4 * H) + part * 128, 4 * H, now.count);
#if RESETS
        u32 keeps = gates + KEPT_BYTES - KEEP_BYTES;
        load_keeps(keeps, keep_SB, B, now, 0);
        load_keeps(keeps, keep_SB, B, now, 1);
#endif
        load_first(at, before_SBH + (u64)now.first * H, now.count);
#pragma unroll
        for (int j = 0; j < CELLS; j++) {
            int stream = 8 * j + column;
            u64 from = (u64)(now.first + stream) * H + part * 32 + unit;
            cell[j] = stream < now.count ? cell_SBH[from] : 0.0f;
        }
#pragma unroll 1
        for (int t = 0; t < T; t++) {
            u64 row = (u64)t * B + now.first;
            u32 gates_now = gates + t % 2 * GATE_BYTES;
            u32 cells = gates + 2 * GATE_BYTES, hiddens = cells + CELL_BYTES;
            u32 sent = RESETS ? hiddens + HIDDEN_BYTES : hiddens;
            if (t) {
                const u16* from = exchange + ((u64)now.number * 2 + t % 2) * (N * H);
                request(at, arrived, now.number, base + (u64)t * CTAS, from);
                copies_wait<0>();
                block_sync();  // from now on nobody reads what the step before left in shared memory
            }
            float sum[N / 2];
            multiply(sum, weights, at, t > 0, (pass * (T - 1) + t - 1) & 1, [&] {
                if (t + 1 < T) {
                    u32 to = gates + (t + 1) % 2 * GATE_BYTES;
                    load_rows<16>(to, gate_TBG + (row + B) * (4 * H) + part * 128, 4 * H, now.count);
                }
                copies_commit();
            });
            // Of the gates, lanes below 16 have input and forget gate of two streams, those above the others. A lane
            // takes one of the streams.
#pragma unroll
            for (int j = 0; j < CELLS; j++) {
                int stream = 8 * j + column;
                u32 place = gates_now + stream * ROW_BYTES<16> + unit * 8;
                uint2 gate = load_8(place);
                float one = exchange_half(upper ? sum[4 * j] : sum[4 * j + 1]);
                float two = exchange_half(upper ? sum[4 * j + 2] : sum[4 * j + 3]);
                float enter = sigmoid((upper ? one : sum[4 * j]) + low(gate.x));
                float keep = sigmoid((upper ? two : sum[4 * j + 2]) + high(gate.x));
                float fresh = squash((upper ? sum[4 * j + 1] : one) + low(gate.y));
                float leave = sigmoid((upper ? sum[4 * j + 3] : two) + high(gate.y));
                float before = cell[j];
#if RESETS
                before = kept(keeps, t, stream) ? before : 0.0f;
#endif
                cell[j] = keep * before + enter * fresh;
                u32 hidden = pack(leave * squash(cell[j]), 0.0f);
                store_2(hiddens + stream * ROW_BYTES<4> + unit * 2, hidden);
#if RESETS
                store_2(sent + stream * ROW_BYTES<4> + unit * 2, kept(keeps, t + 1, stream) ? hidden : 0u);
#endif
                store_8(place, uint2{pack(enter, keep), pack(fresh, leave)});
                store_4(cells + stream * ROW_BYTES<8> + unit * 4, as_bits(cell[j]));
            }
            block_sync();
            if (t + 1 < T) {
                u16* to = exchange + ((u64)now.number * 2 + (t + 1) % 2) * (N * H) + part / 2 * (N * 64);
                for (int i = me.thread; i < N * 4; i += THREADS) {
                    int stream = i / 4, piece = i % 4;
                    write_16(to + swizzled(stream, part % 2 * 4 + piece) / 2,
                             load_16(sent + stream * ROW_BYTES<4> + piece * 16));
                }
                arrive(arrived, now.number);
            }
            store_rows<16>(gate_TBG + row * (4 * H) + part * 128, 4 * H, gates_now, now.count);
            store_rows<8>(cell_SBH + (row + B) * H + part * 32, H, cells, now.count);
            store_rows<4>(hidden_SBH + (row + B) * H + part * 32, H, hiddens, now.count);
#if RESETS
            store_rows<4>(before_SBH + (row + B) * H + part * 32, H, sent, now.count);
            if (t + 2 <= T) load_keeps(keeps, keep_SB, B, now, t + 2);
#endif
        }
        block_sync();  // before the next pass
    }
#if P > 1
    cluster_arrive();
    cluster_wait();
#endif
}
#endif

#ifdef KERNEL_LSTM_BACKWARD
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
lstm_backward(const u16* weight_GH, u16* gate_TBG, const u16* grad_TBH, const float* cell_SBH, const u16* keep_SB,
              u16* exchange, u64* arrived, int T, int B, int size, int passes) {
    constexpr int CTAS = H / 32, CELLS = N / 8;
    constexpr u32 STEP_BYTES = N * (ROW_BYTES<16> + ROW_BYTES<8> + ROW_BYTES<4>);
    constexpr u32 KEPT_BYTES = P * SUM_BYTES + 2 * STEP_BYTES + (RESETS ? KEEP_BYTES : 0);
    static_assert(P == 4, "a CTA's cells are 32 units of 128, one per lane");
    static_assert(KEPT_BYTES <= REST_BYTES, "too many streams");
    Shared at = shared_memory();
    Place me = place();
    u32 rank = cluster_rank(), sums = shared_rest();
#if RESETS
    u32 keeps = sums + KEPT_BYTES - KEEP_BYTES;
#endif
    int part = block_number() % CTAS, unit = part * 32 + me.lane;
    u64 base = arrivals_before(arrived, block_number() / CTAS * passes, CTAS);
    Weights weights;
    keep_columns(weights, at.input, weight_GH, rank * H, part / P * ROWS);
    make_barriers();
    // What a step needs that does not depend on the one before: gates, the cells before it, gradients from above.
    auto load_step = [=](const Group& now, int t) {
        u64 row = (u64)t * B + now.first;
        u32 to = sums + P * SUM_BYTES + t % 2 * STEP_BYTES;
        load_rows<16>(to, gate_TBG + row * (4 * H) + part * 128, 4 * H, now.count);
        load_rows<8>(to + N * ROW_BYTES<16>, cell_SBH + row * H + part * 32, H, now.count);
        load_rows<4>(to + N * (ROW_BYTES<16> + ROW_BYTES<8>), grad_TBH + row * H + part * 32, H, now.count);
    };
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        float cell[CELLS], cell_grad[CELLS];
        Group now = group(CTAS, passes, pass, B, size);
        load_step(now, T - 1);
#pragma unroll
        for (int j = 0; j < CELLS; j++) {
            int stream = 8 * j + me.warp;
            u64 from = ((u64)T * B + now.first + stream) * H + unit;
            cell[j] = stream < now.count ? cell_SBH[from] : 0.0f;
            cell_grad[j] = 0.0f;
        }
#if RESETS
        load_keeps(keeps, keep_SB, B, now, T - 1);
#endif
        copies_commit();
        copies_wait<0>();
        block_sync();
        if (T > 1) load_step(now, T - 2);
        copies_commit();
#pragma unroll 1
        for (int t = T - 1; t >= 0; t--) {
            u64 row = (u64)t * B + now.first;
            u32 gates = sums + P * SUM_BYTES + t % 2 * STEP_BYTES;
            u32 cells = gates + N * ROW_BYTES<16>, hidden_grads = cells + N * ROW_BYTES<8>;
            bool arriving = t < T - 1;
            if (arriving) {
                u32 parity = (pass * (T - 1) + T - 2 - t) & 1;
                const u16* from = exchange + (((u64)now.number * 2 + (t + 1) % 2) * P + rank) * (N * H);
                request(at, arrived, now.number, base + (u64)(T - 1 - t) * CTAS, from);
                copies_wait<0>();
                block_sync();  // from now on nobody reads what the step before left in shared memory
                float sum[N / 2];
                multiply(sum, weights, at, true, parity, [&] {
                    if (t) load_step(now, t - 1);
                    copies_commit();
                });
                // To the CTA whose cells they are. Nobody there uses the step before's sums: it has arrived since.
                u32 to = sums + rank * SUM_BYTES + (me.q * 16 + me.warp % 2 * 8 + me.r) * 16;
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    send(to + j * 1024, at.barrier + 8 * BLOCKS, me.warp / 2, sum[4 * j], sum[4 * j + 1],
                         sum[4 * j + 2], sum[4 * j + 3]);
                }
                wait_for(at.barrier + 8 * BLOCKS, parity);
            }
            uint2 grads[CELLS];
#pragma unroll
            for (int j = 0; j < CELLS; j++) {
                int stream = 8 * j + me.warp;
                uint2 gate = load_8(gates + stream * ROW_BYTES<16> + me.lane * 8);
                float last = as_float(load_4(cells + stream * ROW_BYTES<8> + me.lane * 4));
                u32 pair = load_4(hidden_grads + stream * ROW_BYTES<4> + me.lane / 2 * 4);
                float hidden_grad = me.lane % 2 ? high(pair) : low(pair);
                if (arriving) {
                    u32 place = sums + j * 1024 + (me.warp / 2 * 16 + me.lane / 2) * 16;
                    float total = 0.0f;
#pragma unroll
                    for (u32 peer = 0; peer < P; peer++) {
                        total += as_float(load_4(place + peer * SUM_BYTES + me.lane % 2 * 8 + me.warp % 2 * 4));
                    }
#if RESETS
                    total = kept(keeps, t + 1, stream) ? total : 0.0f;
#endif
                    hidden_grad += total;
                }
                float enter = low(gate.x), keep = high(gate.x), fresh = low(gate.y), leave = high(gate.y);
                float squashed = squash(cell[j]);
                float before = last;
#if RESETS
                bool keeps_cell = kept(keeps, t, stream);
                before = keeps_cell ? before : 0.0f;
#endif
                float grad = cell_grad[j] + hidden_grad * leave * (1.0f - squashed * squashed);
                float enter_grad = grad * fresh * enter * (1.0f - enter);
                float keep_grad = grad * before * keep * (1.0f - keep);
                float fresh_grad = grad * enter * (1.0f - fresh * fresh);
                float leave_grad = hidden_grad * squashed * leave * (1.0f - leave);
                cell_grad[j] = grad * keep;
#if RESETS
                cell_grad[j] = keeps_cell ? cell_grad[j] : 0.0f;
#endif
                cell[j] = last;
                grads[j] = uint2{pack(enter_grad, keep_grad), pack(fresh_grad, leave_grad)};
                if (t) {
                    u16* to = exchange + ((u64)now.number * 2 + t % 2) * (4 * N * H);
                    to += (part * 2 + me.lane / 16) * (N * 64);
                    write_8(to + swizzled(stream, me.lane % 16 / 2) / 2 + me.lane % 2 * 4, grads[j]);
                }
            }
            if (t) arrive(arrived, now.number);
#pragma unroll
            for (int j = 0; j < CELLS; j++) {
                int stream = 8 * j + me.warp;
                if (stream < now.count) write_8(gate_TBG + 4 * ((row + stream) * H + unit), grads[j]);
            }
#if RESETS
            if (t) load_keeps(keeps, keep_SB, B, now, t - 1);
#endif
        }
        block_sync();  // before the next pass
    }
    cluster_arrive();
    cluster_wait();
}
#endif
