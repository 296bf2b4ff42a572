"""Texts that hold a secret and texts that hold none, for the test of the secret scan."""

# Kind and text; the secret stands between ⟦ and ⟧. All are made up. At run time `·` is dropped, so
# that no line here is a token a repository scanner knows, `⏎` is a line break, `∅` a U+200B.
POSITIVES = r"""
password_assignment | password: ⟦hunter2secret⟧
password_assignment | Password: ⟦hunter2⟧, please do not tell anyone
password_assignment | My password is ⟦hunter2⟧.
password_assignment | The password for the router at home is ⟦Tr0ub4dor&3⟧ since May
password_assignment | I changed my password to ⟦S0mmer!2024⟧ yesterday
password_assignment | Anna told me her password is now ⟦Kittens99⟧
password_assignment | DB_PASSWORD=⟦correcthorsebattery⟧
password_assignment | PGPASSWORD=⟦swordfish-at-noon⟧ psql -h localhost
password_assignment | userPassword = "⟦correct horse battery staple⟧"
password_assignment | {"passwd": "⟦s3cr3t-sauce⟧", "user": "anna"}
password_assignment | Server=db;User=sa;Password=⟦Hunter2x9⟧;Encrypt=true
password_assignment | <password>⟦opensesame1⟧</password>
password_assignment | **Password:** ⟦letmein12⟧
password_assignment | passphrase: ⟦thunderbolts⟧
password_assignment | Netflix password – ⟦Sunny2020!⟧
password_assignment | The root password "⟦toor1234⟧" is weak, and the password is: forgotten
password_assignment | pw: ⟦hunter2secret⟧
password_assignment | 密码叫 ⟦xiaoming88⟧
password_assignment | mysql --password ⟦hunter2⟧ shop
password_assignment | Password (old): ⟦hunter2⟧
password_assignment | Password:⏎⟦Tr0ub4dor&3⟧
password_assignment | My password is ⟦123456⟧, I know
password_assignment | Das Passwort fürs WLAN ist ⟦Sommer2024!⟧
password_assignment | Kennwort: ⟦Apfelbaum7⟧
password_assignment | Le mot de passe est ⟦Soleil2023⟧
password_assignment | contraseña: ⟦girasol88⟧
password_assignment | 密码：⟦hunter2secret⟧
password_assignment | 密码是 ⟦abc12345⟧，别告诉别人
password_assignment | 我的银行卡密码是⟦4821⟧。
password_assignment | 家里 WiFi 的密码改成了⟦Huawei@2024⟧
password_assignment | 邮箱口令：⟦Xiaoming1990⟧（旧的）
password_assignment | 用户名 anna 密码 ⟦anna2024⟧
password_assignment | パスワードは⟦sakura123⟧です
password_assignment | pass∅word: ⟦hunter∅2secret⟧
password_assignment | ｐａｓｓｗｏｒｄ：⟦ｈｕｎｔｅｒ２ｓｅｃｒｅｔ⟧
key_assignment | API_KEY=⟦abcdefghijklmnop123456⟧
key_assignment | My OpenWeather API key is ⟦9f86d081884c7d659a2feaa0c55ad015⟧
key_assignment | client_secret: "⟦Zx81-plus-4kk⟧"
key_assignment | 令牌：⟦tok12345678⟧
key_assignment | https://shop.example/back?state=1&access_token=⟦q9w8e7r6t5⟧&lang=en
key_assignment | aws_secret_access_key = ⟦wJalrX·UtnFEMIK7MDENGbPxRfiCYzzMADEUPKEY⟧
key_assignment | AccountName=shop;AccountKey=⟦Zm9vYmFy·YmF6cXV4Zm9vYmFyYmF6cXV4MTIzNA==⟧
key_assignment | secret = '⟦n0t-so-very⟧'
aws_access_key | The access key id is ⟦AKIA·Z7QWERTYUIOPASDF⟧
aws_access_key | ⟦ASIA·Z7QWERTYUIOPASDF⟧ expires at noon
github_token | Use ⟦ghp_·a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8⟧ for the clone
github_token | 新的令牌⟦github_pat_·11ABCDEFG0a1b2c3d4e5f6_h7i8j9k0l1m2n3o4p5⟧已生成
gitlab_token | ⟦glpat-·a1b2C3d4E5f6G7h8I9j0⟧
gitlab_token | Runner: ⟦glrt-·a1b2C3d4E5f6G7h8I9j0⟧
slack_token | ⟦xoxb-·123456789012-1234567890123-a1B2c3D4e5F6⟧
slack_token | Post to ⟦https://hooks.slack.com/·services/T0AB12CD3/B0AB12CD3/a1B2c3D4e5⟧
google_api_key | Maps: ⟦AIza·SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q⟧
npm_token | ⟦npm_·a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8⟧
stripe_key | ⟦sk_live_·a1B2c3D4e5F6g7H8i9J0k1L2⟧
stripe_key | rotate ⟦rk_live_·a1B2c3D4e5F6g7H8⟧ soon
model_api_key | ⟦sk-·abcdefghijkl1234⟧
model_api_key | Claude: ⟦sk-ant-·api03-a1B2c3D4e5F6g7H8i9J0⟧
model_api_key | ⟦sk-proj-·a1B2c3D4e5F6_g7H8i9J0-k1L2⟧
telegram_token | ⟦123456789·:AAa1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7⟧
discord_token | ⟦MTA1·NjY2Nzc3ODg4OTk5MDAw.GaBcDe.·a1B2c3D4e5F6g7H8i9J0k1L2m3N⟧
sendgrid_key | ⟦SG.·a1B2c3D4e5F6g7H8i9J0k1.L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6a7B8c9D0e1F2g⟧
mailchimp_key | ⟦0123456789abcdef·0123456789abcdef-us12⟧
pypi_token | ⟦pypi-·AgEIcHlwaS5vcmcCJDQ1NjFhMmIz{random}{random}⟧
square_secret | ⟦sq0csp-·a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V⟧
service_token | ⟦hf_·a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7⟧
service_token | Docker: ⟦dckr_pat_·a1B2c3D4e5F6g7H8i9J0k1L2m3N⟧
json_web_token | ⟦eyJ·hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.a1B2c3D4e5F6g7H8i9J0⟧
bearer_token | curl -H "Authorization: Bearer ⟦abcdefghijklmnopqrstuvwxyz0123⟧"
basic_auth | Authorization: Basic ⟦YW5uYTpodW50ZXIy⟧
connection_string | postgres://app:⟦s3cr3tPass⟧@db.example.com:5432/shop
connection_string | https://anna:⟦p@ss!w0rd⟧@intranet.example.com/wiki
connection_string | redis://:⟦cache-me-if-you-can⟧@10.0.0.7:6379/0
signed_url | https://x.blob.example/a?sv=1&sig=⟦a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7%3D⟧
private_key | Key: ⟦-----BEGIN OPENSSH ·PRIVATE KEY-----⏎b3Bl⏎-----END OPENSSH ·PRIVATE KEY-----⟧ ok
private_key | ⟦-----BEGIN ·PRIVATE KEY-----⟧ is all that I kept
private_key | "⟦-----BEGIN RSA ·PRIVATE KEY-----\nMIIEowIBAAKCAQEA1234\nMIIEowIBAAKCAQEA⟧
private_key | ⟦-----BEGIN PGP ·PRIVATE KEY BLOCK-----⏎⏎lQ==⏎-----END PGP ·PRIVATE KEY BLOCK-----⟧
private_key | ⟦PuTTY-User-Key-File-2: ssh-rsa⏎Private-Lines: 1⏎AAAAgQDX⏎Private-MAC: 0a1b⟧
private_key | ⟦AGE-SECRET-KEY-1·QQPQZRY9X8GF2TVDW0S3JN54KHCE6MUA7LQQPQZRY9X8GF2TVDW⟧
seed_phrase | Seed phrase: ⟦acid bone coral dust ember frost glow hawk iron jade kiwi lamp⟧
high_entropy_string | The auth for the new account: ⟦Kq3vT9xZ1mB7nR5wL2pD⟧
high_entropy_string | Kept for later: ⟦{random}⟧
""".replace("{random}", "aB3dE5fG7hI9kL1mN3oP5qR7sT9uV1wX")

NEGATIVES = r"""
keyboard_shortcuts
tokenization_strategy
task-management-service
sk-learn-compatible-estimators
My password manager is Bitwarden
I always forget my password
I keep my password in my head and my keys in my pocket
The password is wrong again, he said
The password is case-sensitive and must have 12 characters
My password is 2FA-protected and 16 characters long
The password length is 12 and password_length=24
password_manager: Bitwarden
Password: required
api_key: <your-key>
export API_KEY=${API_KEY}
token=$GITHUB_TOKEN ./deploy
password = {{ vault_password }}
password: ********
password = get_password(user)
password=password, user=user
def log_in(user: str, password: SecretStr) -> Token:
private_key: ~/.ssh/id_ed25519
API key: https://console.example.com/keys
The new token is ERC20-compatible
Boarding pass: XK9P2M
The password for the meeting is in the calendar invite
The API key is rotated every 90 days
The token budget is 128000 and max_tokens=4096
token_count: 12345678
The secret is to add salt to the water 10 minutes later
Her secret santa gift was a book
API_KEY is in 1Password, password: [REDACTED]
密码我写在纸上了
密码是2019年设的
密码是我的生日
密码至少要8位
密码 iPhone15 上有
我总是忘记密码，所以用 1Password
密码箱放在二楼的书房里，钥匙在三楼
密钥长度为2048位，轮换周期是90天
令牌桶算法每秒放行 1000 个请求
她最喜欢的密室逃脱口令是芝麻开门
550e8400-e29b-41d4-a716-446655440000
commit 9fceb02d0ae598e95dc970b74767f19372d61af8 broke the build
mem_9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
The confirmation token is mem_9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
personal-message:s-main-1:42
op-0123456789abcdef01234567
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
docker pull python@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8 is the fingerprint of the host
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl anna@home
integrity hash sha512-oRA1pX2wU7eT3bHn9YkQ4mVzLcJ6sDfG8aE5rT0yUiOp
https://docs.example.com/document/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/edit
https://www.youtube.com/watch?v=dQw4w9WgXcQ
https://example.com:8443/a@b?next=/keys
git@github.com:anna/notes.git and ssh://git@example.com:22/anna/notes
Call me at +49 (170) 1234567-89 or 138-0013-8000
ISBN 978-3-16-148410-0
IBAN DE89 3704 0044 0532 0130 00, or DE89370400440532013000
Card 4111 1111 1111 1111 expires 12/27
anna.long+newsletter2024@example-university.ac.uk
Wi-Fi name: FRITZ!Box 7590 AX-2.4GHz
Product code WH-1000XM5/B, serial 5CD1234XYZ
Licence plate B-MW 1234, flight LH1234 to MUC, seat 23A
AbstractSingletonProxyFactoryBeanConfigurationManagerImplementationForKeys
convertXmlHttpRequest2JsonResponseWithRetry3Times
/home/anna/projects/memoranda/ledger/secret_scan.py
C:\Users\Anna\AppData\Local\Programs\Python\Python311\python.exe
Donaudampfschifffahrtsgesellschaftskapitänsmützenfabrik
Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz
VGhlIHdlYXRoZXI is how the word starts in base64
ASIAPACIFICHEADQUARTERS moved to Singapore
xoxo-hugs-and-kisses from grandma
The Basic plan costs 12 euros, the bearer of this letter is my aunt
Bearer <token> goes into the header
The BEGIN PRIVATE KEY line was missing
-----BEGIN CERTIFICATE-----⏎MIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQ⏎-----END CERTIFICATE-----
The recovery phrase is written on a card in the drawer of the desk in my study
glass-top-table-with-four-chairs for the garden
He wired it to 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2, a wallet of the museum
2024-05-17T10:22:31.123456Z
lat 48.137154, lon 11.576124
v1.2.3-rc.4+build.20240517
一二三四五六七八九十百千万亿兆京垓秭穰沟涧正载极恒河沙阿僧祇那由他不可思议无量大数
"""
