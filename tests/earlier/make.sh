#!/bin/sh
# How these files were made, with the code of 0.1.0 as it was before its modules moved: sh make.sh, in an empty directory.
set -e
python - > text.txt <<'P'
import random
random.seed(3)
words = [a + b for a in "bdgklmnprst" for b in "aeiou"]
for number in range(1500):
    if number % 10 == 0:
        print()
    start = random.randrange(55)
    print(" ".join(words[(start + i * random.choice((1, 1, 2))) % 55] for i in range(random.randint(3, 9))) + " .")
P
bnce prepare text.txt --out /corpus --vocab-size 50 --workers 1 --valid-fraction 0.1 --test-fraction 0.1
S="--set model.embedding_size=6 --set model.hidden_size=8 --set model.bottleneck_size=7 --set model.order=3
   --set optimiser.warmup_steps=5 --set training.batch_size=8 --set training.num_steps=5 --set training.epochs=2
   --set training.evaluations_per_epoch=2 --set training.checkpoint_seconds=0.0001 --threads 1"
for model in ffnn rnn relu-rnn lstm relu-lstm; do
  bnce train wiki --corpus /corpus --model $model --loss bnce --out run-$model $S
  rm -rf run-$model/tensorboard run-$model/state-*
done
for loss in softmax nce snce chunk-bnce; do
  bnce train wiki --corpus /corpus --model relu-lstm --loss $loss --out run-$loss $S
  rm -rf run-$loss/tensorboard run-$loss/state-*
done
# One with its states, and what the same code makes of it when it goes on.
bnce train wiki --corpus /corpus --model lstm --loss chunk-bnce --out resumable $S
cp -r resumable resumed
bnce train --out resumed --resume --set training.epochs=4
mkdir expected
cp resumed/evaluation.json expected/resumed.json
bnce evaluate run-relu-lstm --text text.txt --json > expected/evaluate.json
head -20 text.txt > score.txt
bnce score run-relu-lstm score.txt --json > expected/score.json
bnce export run-relu-lstm --to onnx --out onnx
bnce export run-relu-lstm --to transformers --out transformers
bnce export run-relu-lstm --to safetensors --rows int8 --out int8
bnce score int8 score.txt --json > expected/int8.json
bnce ngram text.txt --order 2 --vocab /corpus/vocab.txt --out bigram.arpa
bnce interpolate run-relu-lstm bigram.arpa --valid score.txt --out mixture.toml
bnce score mixture.toml score.txt --json > expected/mixture.json
bnce experiment ltcb --corpus /corpus --models rnn --losses softmax,bnce --out experiment $S
rm -rf resumed text.txt */tensorboard */*/tensorboard
